package device

import (
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/units"
)

// Checker refuses what no device with these Limits may be given. Every backend calls it before its API, so a mistake is
// the same error everywhere and no driver sees it.
type Checker struct {
	Device string
	Limits target.Limits
	// Own returns an error if a buffer does not belong to the device, or is released.
	Own func(Buffer) error
}

// refuse makes an *Error that wraps ErrValidation.
func (c Checker) refuse(op, object, format string, args ...any) error {
	return &Error{Op: op, Object: object, Device: c.Device, Cause: Invalid(format, args...)}
}

// Alloc checks a buffer's size, and that used+size stays within a budget of bytes (0: no budget).
func (c Checker) Alloc(label string, size, used, budget int64) error {
	switch {
	case size <= 0 || size%4 != 0:
		return c.refuse("alloc", label, "size %d, must be a positive multiple of 4", size)
	case size > c.Limits.MaxBufferSize:
		return c.refuse("alloc", label, "size %d exceeds the largest buffer, %d bytes", size, c.Limits.MaxBufferSize)
	case budget > 0 && size > budget-used:
		return &Error{Op: "alloc", Object: label, Device: c.Device,
			Cause: fmt.Errorf("%w: %s needed, %s of %s in use", ErrOutOfMemory, units.Bytes(size), units.Bytes(used), units.Bytes(budget))}
	}
	return nil
}

// Import checks memory to be imported by a device with that ImportAlignment.
func (c Checker) Import(label string, memory []byte, alignment int64) error {
	size, address := int64(len(memory)), uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	switch {
	case alignment == 0:
		return &Error{Op: "import", Object: label, Device: c.Device, Cause: ErrNoImport}
	case size == 0 || size%alignment != 0:
		return c.refuse("import", label, "size %d, must be a positive multiple of %d", size, alignment)
	case size > c.Limits.MaxBufferSize:
		return c.refuse("import", label, "size %d exceeds the largest buffer, %d bytes", size, c.Limits.MaxBufferSize)
	case address%uintptr(alignment) != 0:
		return c.refuse("import", label, "address %#x, must be a multiple of %d", address, alignment)
	}
	return nil
}

// Copy checks an Importer's Transfer.
func (c Checker) Copy(from, to Range) error {
	if err := c.copies(from, to); err != nil {
		return c.refuse("transfer", bufferLabel(from.Buffer), "%v", err)
	}
	return nil
}

// Transfer checks a Read or Write of n bytes of b at offset.
func (c Checker) Transfer(op string, b Buffer, offset, n int64) error {
	if err := c.usable(b); err != nil {
		return c.refuse(op, bufferLabel(b), "%v", err)
	}
	if offset%4 != 0 || n%4 != 0 {
		return c.refuse(op, b.Label(), "offset %d and size %d must be multiples of 4", offset, n)
	}
	if offset < 0 || n < 0 || n > b.Size() || offset > b.Size()-n {
		return c.refuse(op, b.Label(), "%d bytes at %d exceed the buffer's %d", n, offset, b.Size())
	}
	return nil
}

// Program checks all of p.
func (c Checker) Program(p *Program) error {
	if p == nil {
		return c.refuse("load", "", "program is nil")
	}
	for i := range p.Shaders {
		if err := c.shader(&p.Shaders[i]); err != nil {
			return err
		}
	}
	for i := range p.Commands {
		if err := c.command(p, i); err != nil {
			return err
		}
	}
	return nil
}

func (c Checker) shader(s *Shader) error {
	l := c.Limits
	refuse := func(format string, args ...any) error { return c.refuse("compile", s.Label, format, args...) }
	if len(s.Bindings) > l.MaxBindings {
		return refuse("%d bindings exceed the device's %d", len(s.Bindings), l.MaxBindings)
	}
	for i, a := range s.Bindings {
		if a != ReadWrite && a != ReadOnly {
			return refuse("binding %d has unknown access %d", i, a)
		}
	}
	invocations := int64(1)
	for i, n := range s.Workgroup {
		if n < 1 || n > l.MaxWorkgroupSize[i] {
			return refuse("workgroup %v: dimension %d must lie in 1…%d", s.Workgroup, i, l.MaxWorkgroupSize[i])
		}
		invocations *= int64(n)
	}
	if invocations > int64(l.MaxInvocations) {
		return refuse("workgroup %v has %d invocations, the device allows %d", s.Workgroup, invocations, l.MaxInvocations)
	}
	if s.WorkgroupMemory < 0 || s.WorkgroupMemory > l.MaxWorkgroupMemory {
		return refuse("%d bytes of workgroup memory exceed the device's %d", s.WorkgroupMemory, l.MaxWorkgroupMemory)
	}
	if s.Source == "" || strings.ContainsRune(s.Source, 0) || !utf8.ValidString(s.Source) {
		return refuse("the source is not text: it is empty, not UTF-8, or holds a zero byte")
	}
	if s.Assembly() {
		if !l.Assembly {
			return refuse("the source is SPIR-V assembly, which this device does not take: it must be WGSL")
		}
		return nil // the backend compares what the module declares
	}
	if s.C() {
		if !l.Native {
			return refuse("the source is C, which this device does not take: it must be WGSL")
		}
		return nil // C declares neither
	}
	if l.Native {
		return refuse("the source is WGSL, which this device does not take: it must be C")
	}
	if size, ok := workgroupSize(s.Source); ok && size != s.Workgroup {
		return refuse("the source declares workgroup %v, the program %v", size, s.Workgroup)
	}
	if n := workgroupMemory(s.Source); n > int64(s.WorkgroupMemory) {
		return refuse("the source declares at least %d bytes of workgroup memory, the program %d", n, s.WorkgroupMemory)
	}
	return nil
}

func (c Checker) command(p *Program, i int) error {
	cmd := &p.Commands[i]
	if cmd.Shader == Copy {
		return c.copyCommand(p, i)
	}
	if cmd.Shader < 0 || cmd.Shader >= len(p.Shaders) {
		return c.refuse("load", p.Label, "command %d names shader %d of %d", i, cmd.Shader, len(p.Shaders))
	}
	s := &p.Shaders[cmd.Shader]
	refuse := func(format string, args ...any) error {
		return c.refuse("load", s.Label, "command %d: %s", i, fmt.Sprintf(format, args...))
	}
	if len(cmd.Args) != len(s.Bindings) {
		return refuse("%d arguments for %d bindings", len(cmd.Args), len(s.Bindings))
	}
	for d, n := range cmd.Groups {
		if n < 1 || n > c.Limits.MaxDispatchDimension {
			return refuse("dispatch %v: dimension %d must lie in 1…%d", cmd.Groups, d, c.Limits.MaxDispatchDimension)
		}
	}
	for k, r := range cmd.Args {
		if err := c.argument(r); err != nil {
			return refuse("argument %d: %v", k, err)
		}
		for j, q := range cmd.Args[:k] {
			if err := compatible(q, r, s.Bindings[j], s.Bindings[k]); err != nil {
				return refuse("arguments %d and %d: %v", j, k, err)
			}
		}
	}
	return nil
}

func (c Checker) argument(r Range) error {
	if err := c.inside(r); err != nil {
		return err
	}
	if r.Size > c.Limits.MaxBindingSize {
		return fmt.Errorf("%d bytes of %q exceed the largest binding, %d", r.Size, r.Buffer.Label(), c.Limits.MaxBindingSize)
	}
	if r.Offset%c.Limits.OffsetAlignment != 0 {
		return fmt.Errorf("offset %d in %q is not a multiple of %d", r.Offset, r.Buffer.Label(), c.Limits.OffsetAlignment)
	}
	return nil
}

// compatible returns an error if one dispatch may not bind both ranges. Within a dispatch, a buffer is either read-only
// in all its bindings or writable in all (WebGPU's usage scope), and a writable range overlaps no other.
func compatible(q, r Range, aq, ar Access) error {
	if q.Buffer != r.Buffer || aq == ReadOnly && ar == ReadOnly {
		return nil
	}
	if aq != ar {
		return fmt.Errorf("%q is bound read-only and writable at once", r.Buffer.Label())
	}
	if overlap(q, r) {
		return fmt.Errorf("writable ranges [%d,%d) and [%d,%d) of %q overlap",
			q.Offset, q.Offset+q.Size, r.Offset, r.Offset+r.Size, r.Buffer.Label())
	}
	return nil
}

func overlap(q, r Range) bool {
	return q.Buffer == r.Buffer && q.Offset < r.Offset+r.Size && r.Offset < q.Offset+q.Size
}

func (c Checker) copyCommand(p *Program, i int) error {
	a := p.Commands[i].Args
	refuse := func(format string, args ...any) error {
		return c.refuse("load", p.Label, "command %d, a copy: %s", i, fmt.Sprintf(format, args...))
	}
	if len(a) != 2 {
		return refuse("%d arguments, must be source and destination", len(a))
	}
	if err := c.copies(a[0], a[1]); err != nil {
		return refuse("%v", err)
	}
	return nil
}

// copies checks the ranges of a copy.
func (c Checker) copies(from, to Range) error {
	for _, r := range []Range{from, to} {
		if err := c.inside(r); err != nil {
			return err
		}
	}
	if from.Size != to.Size {
		return fmt.Errorf("sizes %d and %d differ", from.Size, to.Size)
	}
	if overlap(from, to) {
		return fmt.Errorf("source and destination overlap in %q", from.Buffer.Label())
	}
	return nil
}

// inside checks that r lies within a buffer of this device, in whole words.
func (c Checker) inside(r Range) error {
	if err := c.usable(r.Buffer); err != nil {
		return fmt.Errorf("buffer %q: %w", bufferLabel(r.Buffer), err)
	}
	if r.Size <= 0 || r.Size%4 != 0 || r.Offset < 0 || r.Offset%4 != 0 {
		return fmt.Errorf("%d bytes at %d of %q: must be a positive multiple of 4 at a multiple of 4",
			r.Size, r.Offset, r.Buffer.Label())
	}
	if r.Size > r.Buffer.Size() || r.Offset > r.Buffer.Size()-r.Size {
		return fmt.Errorf("%d bytes at %d exceed the %d of %q", r.Size, r.Offset, r.Buffer.Size(), r.Buffer.Label())
	}
	return nil
}

func (c Checker) usable(b Buffer) error {
	if b == nil {
		return fmt.Errorf("is nil")
	}
	return c.Own(b)
}

func bufferLabel(b Buffer) string {
	if b == nil {
		return ""
	}
	return b.Label()
}

// Invalid makes a cause that wraps ErrValidation.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrValidation, fmt.Sprintf(format, args...))
}
