package train

import (
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// Session is programs in memory that share variables; exec.Session is the one that users run. Operations are enqueued in
// order, and only waiting for a pending read waits.
type Session interface {
	WriteVariable(name string, data []byte) error
	ReadVariable(name string) (device.Pending, error)
	Variables() []graph.Named
	SetInput(program, name string, data []byte) error
	Run(program string) error
	Output(program, name string) (device.Pending, error)
	Close() error
}

// Planned is programs that are known to fit, not yet loaded.
type Planned struct {
	Memory  exec.Memory
	Kernels int
	Load    func() (Session, error)
}

// Executor plans graphs for a device.
type Executor func(dev device.Device, graphs map[string]*graph.Graph) (Planned, error)

// OpenDevice opens a device by the name that users write; only cmd knows the backends.
type OpenDevice func(name string) (device.Device, error)

// chooser is nil without a cache, and not an interface that holds none.
func chooser(c *tune.Cache) exec.Chooser {
	if c == nil {
		return nil
	}
	return c
}

// Execute is the Executor of runtime/exec. tune chooses among a kernel's candidates; nil is the static choice.
func Execute(tune exec.Chooser) Executor {
	return func(dev device.Device, graphs map[string]*graph.Graph) (Planned, error) {
		o := exec.Options{Tune: tune}
		if d, ok := dev.(interface{ Budget() int64 }); ok {
			o.Budget = d.Budget()
		}
		p, err := exec.NewPlan(dev, graphs, o)
		if err != nil {
			return Planned{}, err
		}
		planned := Planned{Memory: p.Memory(), Load: func() (Session, error) {
			s, err := p.Load()
			if err != nil {
				return nil, err // and not a Session that holds a nil *exec.Session
			}
			return s, nil
		}}
		for name := range graphs {
			planned.Kernels += len(p.Kernels(name))
		}
		return planned, nil
	}
}
