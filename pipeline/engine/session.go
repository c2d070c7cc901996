package engine

import (
	"cmp"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Session is programs in memory that share variables; exec.Session is the one that users run. Operations are enqueued in
// order, and only waiting for a pending read waits. A Binding says which of a pool's buffers is meant; nil where there is no pool.
type Session interface {
	WriteAt(variable string, at exec.Binding, data []byte) error
	ReadAt(variable string, at exec.Binding) (device.Pending, error)
	SetInput(program, name string, data []byte) error
	RunAt(program string, at exec.Binding) error
	Output(program, name string) (device.Pending, error)
	// Mark is pending until all that was enqueued is done.
	Mark() (device.Pending, error)
	Close() error
}

// Planned is programs that are known to fit, not yet loaded.
type Planned struct {
	Memory  exec.Memory
	Kernels int
	Untuned error // why kernels are not those that were chosen by timing, as exec.Plan has it
	Load    func() (Session, error)
}

// Executor plans graphs for a device.
type Executor func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (Planned, error)

// Execute is the Executor of runtime/exec. tune chooses among a kernel's candidates; nil is the static choice. memory is what a
// device may take, in bytes; 0: what it tells.
func Execute(tune exec.Chooser, memory int64) Executor {
	return func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (Planned, error) {
		p, err := exec.NewPlan(dev, graphs, exec.Options{Tune: tune, Pools: pools, Budget: cmp.Or(memory, device.Budget(dev))})
		if err != nil {
			return Planned{}, err
		}
		planned := Planned{Memory: p.Memory(), Untuned: p.Untuned(), Load: func() (Session, error) {
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
