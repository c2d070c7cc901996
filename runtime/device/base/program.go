package base

import "github.com/gpupipe/gpupipe/runtime/device"

// Program is embedded by a backend's loaded programs.
type Program struct {
	owner    any // an *Owner
	label    string
	buffers  []*Buffer // that its commands use, each once
	released bool      // under the device's lock
}

type ownedProgram interface {
	comparable
	device.Loaded
	program() *Program
}

// NewProgram returns the base of a loaded program of this device, to be passed to Load. p may be nil: Load refuses it.
func (o *Owner[B, P]) NewProgram(p *device.Program) Program {
	l := Program{owner: o}
	if p != nil {
		l.label = p.Label
	}
	return l
}

func (p *Program) program() *Program { return p }

// Label returns the program's label.
func (p *Program) Label() string { return p.label }

// Do carries out an operation of a backend on the object of that label: Owner.Do under the lock of its device.
type Do func(operation, label string, f func() error) error

// Load has do check p, call build, and take l in.
func (o *Owner[B, P]) Load(do Do, l P, p *device.Program, build func() error) (device.Loaded, error) {
	err := do("load", l.program().label, func() error {
		if err := o.Checker().Program(p); err != nil {
			return err
		}
		for i := range p.Shaders {
			s := &p.Shaders[i]
			if err := o.Dump(p.Label, s, s.Format(), []byte(s.Source)); err != nil {
				return err
			}
		}
		l.program().buffers = buffersOf[B](p)
		if err := build(); err != nil {
			return err
		}
		o.programs[l] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func buffersOf[B ownedBuffer](p *device.Program) (all []*Buffer) {
	seen := map[*Buffer]bool{}
	for i := range p.Commands {
		for _, r := range p.Commands[i].Args {
			if b := r.Buffer.(B).buffer(); !seen[b] {
				seen[b] = true
				all = append(all, b)
			}
		}
	}
	return all
}

// Compile calls compile for the shaders of p in order and names its error. It stops when the device is being closed.
func Compile[B ownedBuffer, P ownedProgram, T any](o *Owner[B, P], p *device.Program, compile func(*device.Shader) (T, error)) ([]T,
	error) {
	all := make([]T, len(p.Shaders))
	for i := range p.Shaders {
		if o.leaving.Load() {
			return nil, device.ErrClosed
		}
		var err error
		if all[i], err = compile(&p.Shaders[i]); err != nil {
			return nil, o.Named("compile", p.Shaders[i].Label, err)
		}
	}
	return all, nil
}

// Run has do call run with l as a program of this device. It refuses a program of another device, and one that is
// released or uses a buffer that is.
func (o *Owner[B, P]) Run(do Do, l device.Loaded, run func(P) error) error {
	var none P
	ours, ok := l.(P)
	if !ok || ours == none || ours.program().owner != any(o) {
		return o.Named("run", "", device.Invalid("the program %v", errForeign))
	}
	return do("run", ours.program().label, func() error {
		if ours.program().released {
			return device.Invalid("the program %v", errReleased)
		}
		for _, b := range ours.program().buffers {
			if b.released {
				return device.Invalid("buffer %q %v", b.label, errReleased)
			}
		}
		return run(ours)
	})
}

// Unload takes l out, and reports whether it had not been released before.
func (o *Owner[B, P]) Unload(l P) bool {
	x := l.program()
	if x.released {
		return false
	}
	x.released, x.buffers = true, nil
	delete(o.programs, l)
	return true
}

// UnloadWith is ReleaseWith of a program.
func (o *Owner[B, P]) UnloadWith(do Do, l P, free func()) {
	_ = do("release", l.program().label, func() error {
		if o.Unload(l) {
			free()
		}
		return nil
	})
}
