package translate

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Native is a device that runs C.
type Native interface {
	device.Device
	device.Importer
	device.Timer
}

// Device takes WGSL, which it translates for another device.
type Device struct{ Native }

// Limits returns the limits of the other device, but for its language.
func (d Device) Limits() target.Limits {
	l := d.Native.Limits()
	l.Native = false
	return l
}

// Budget returns the budget of the other device.
func (d Device) Budget() int64 { return device.Budget(d.Native) }

// Load translates a program's shaders. Mistakes of the program come before mistakes of its sources.
func (d Device) Load(p *device.Program) (device.Loaded, error) {
	if p == nil {
		return d.Native.Load(p)
	}
	translated := *p
	translated.Shaders = slices.Clone(p.Shaders)
	var mistake error
	for i := range translated.Shaders {
		s := &translated.Shaders[i]
		if s.Source == "" || !utf8.ValidString(s.Source) || strings.Contains(s.Source, "\x00") || s.Assembly() {
			continue // the other device says so
		}
		c, err := source(s)
		if err != nil && mistake == nil {
			mistake = &device.Error{Device: d.Info().Name, Op: "compile", Object: s.Label, Cause: err}
		}
		s.Source = c
	}
	l, err := d.Native.Load(&translated)
	if err == nil && mistake != nil {
		l.Release()
		return nil, mistake
	}
	return l, err
}

// source is the C of a shader. A shader with a mistake becomes a kernel that does nothing.
func source(s *device.Shader) (string, error) {
	const nothing = target.C + "\nKERNEL {}\n"
	if s.C() {
		return nothing, device.Invalid("the source is C, which this device does not take: it must be WGSL")
	}
	k, err := Translate(s.Source, Options{Inside: s.Inside})
	if err != nil {
		return nothing, device.Invalid("%v", err)
	}
	if err := agrees(s, k); err != nil {
		return nothing, err
	}
	return k.C, nil
}

// agrees compares what a source declares with what the program says of it.
func agrees(s *device.Shader, k Kernel) error {
	switch {
	case k.Workgroup != s.Workgroup:
		return device.Invalid("the source declares workgroup %v, the program %v", k.Workgroup, s.Workgroup)
	case k.Memory > s.WorkgroupMemory:
		return device.Invalid("the source declares at least %d bytes of workgroup memory, the program %d", k.Memory, s.WorkgroupMemory)
	case len(k.Writable) > len(s.Bindings):
		return device.Invalid("the source has %d bindings, the program %d", len(k.Writable), len(s.Bindings))
	}
	for i, writable := range k.Writable {
		if writable != (s.Bindings[i] == device.ReadWrite) {
			return device.Invalid("the source declares binding %d %s, the program %s", i, access(writable), access(!writable))
		}
	}
	return nil
}

func access(writable bool) string {
	if writable {
		return "read_write"
	}
	return "read"
}
