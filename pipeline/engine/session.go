package engine

import (
	"cmp"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Session is a set of loaded programs that share variables; exec.Session implements it. Operations are enqueued in
// order, and only waiting for a pending read blocks. A Binding selects a buffer of each pool; it is nil for programs
// and variables without pools.
type Session interface {
	WriteAt(variable string, at exec.Binding, data []byte) error
	ReadAt(variable string, at exec.Binding) (device.Pending, error)
	SetInput(program, name string, data []byte) error
	RunAt(program string, at exec.Binding) error
	Output(program, name string) (device.Pending, error)
	// Mark is pending until all operations before it are done.
	Mark() (device.Pending, error)
	Close() error
}

// Planned is a set of programs that fit the device and are not loaded yet.
type Planned struct {
	Memory  exec.Memory
	Kernels int
	Untuned error // why kernels other than those chosen by timing run, see exec.Plan; nil: they do not
	Load    func() (Session, error)
}

// Executor plans graphs for a device.
type Executor func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (Planned, error)

// Execute is the Executor of runtime/exec. tune chooses among the candidates of a kernel; nil is the static choice.
// memory is the budget of a device in bytes; 0: what the device reports.
func Execute(tune exec.Chooser, memory int64) Executor {
	return func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (Planned, error) {
		p, err := exec.NewPlan(dev, graphs, exec.Options{Tune: tune, Pools: pools, Budget: cmp.Or(memory, device.Budget(dev))})
		if err != nil {
			return Planned{}, err
		}
		planned := Planned{Memory: p.Memory(), Untuned: p.Untuned(), Load: func() (Session, error) {
			s, err := p.Load()
			if err != nil {
				return nil, err // not a Session that holds a nil *exec.Session
			}
			return s, nil
		}}
		for name := range graphs {
			planned.Kernels += len(p.Kernels(name))
		}
		return planned, nil
	}
}
