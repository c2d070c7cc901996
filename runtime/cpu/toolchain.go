//go:build linux && cgo

package cpu

import (
	"context"
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Toolchain is a C compiler for this machine. Several devices may use it at once.
type Toolchain struct {
	compiler *cc.Compiler
	machine  machine
}

// FindToolchain finds the machine's compiler, and loads a kernel that it compiles. If the CPU cannot be a device, the
// error says why: there is no C compiler, or its kernel does not load. cache is Options.CacheDir.
func FindToolchain(cache string) (*Toolchain, error) {
	t, err := newToolchain(Options{CacheDir: cache})
	if err != nil {
		return nil, err
	}
	k, c := newKernels(t.compiler, 1), &compilation{source: trial, done: make(chan struct{})}
	k.build(context.Background(), []*compilation{c})
	if c.err != nil {
		return nil, fmt.Errorf("the C compiler does not work: %w", c.err)
	}
	k.libraries.free()
	return t, nil
}

// newToolchain finds the compiler that o selects.
func newToolchain(o Options) (*Toolchain, error) {
	if o.CacheDir != "" {
		if err := MakeCache(o.CacheDir); err != nil {
			return nil, err
		}
	}
	m := thisMachine()
	c, err := cc.Find(cc.Options{Command: o.Compiler, Cache: o.CacheDir, Last: o.CFlags, CPU: m.identity()})
	if err != nil {
		return nil, err
	}
	return &Toolchain{c, m}, nil
}

// Adapter describes the device that Open opens.
func (t *Toolchain) Adapter() device.Info {
	return t.machine.info(t.compiler, t.machine.processors.Cores())
}

// Limits returns the limits of the device.
func (t *Toolchain) Limits() target.Limits { return limits(t.machine, t.compiler) }

// trial is a kernel that compiles and loads wherever others do.
const trial = target.C + "\nKERNEL { for (u32 group = first; group < last; group++) ((u32 *)args[0].at)[group] = grid[0]; }\n"
