package wasm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/gpupipe/gpupipe/wasm/meter"
)

const maxTail = 1024 // bytes of output that an error quotes

// abiImports are log, fail and config_key.
func abiImports() []Import {
	text := []api.ValueType{i32, i32}
	return []Import{
		{Name: "log", Params: text, Call: func(i *Instance, s []uint64) error {
			b, err := i.Read(uint32(s[0]), uint32(s[1]))
			if err != nil {
				return err
			}
			i.Charge(abi.HostCall + int64(len(b))/8)
			i.call.output.write(b)
			i.call.output.write([]byte("\n"))
			return nil
		}},
		{Name: "fail", Params: text, Call: func(i *Instance, s []uint64) error {
			b, err := i.Read(uint32(s[0]), uint32(s[1]))
			if err != nil {
				return err
			}
			i.Charge(abi.HostCall + 8*int64(min(len(b), abi.MaxMessage)))
			i.call.Failed, i.call.Message = true, printable(b[:min(len(b), abi.MaxMessage)])
			return nil
		}},
		keyImport(),
	}
}

// tickImport is the function that package meter's code calls. Modules cannot import it by name.
func tickImport() Import {
	return Import{Name: meter.Tick, Params: []api.ValueType{i32}, Call: func(i *Instance, s []uint64) error {
		return i.tick(uint32(s[0]))
	}}
}

// serve calls a function of the host for the module.
func (i *Instance) serve(guest api.Module, im Import, stack []uint64) {
	i.attach(guest)
	err := im.Call(i, stack)
	if err == nil {
		return
	}
	var (
		h *halt
		e *Error
	)
	switch {
	case errors.As(err, &h) && im.Name == meter.Tick:
		panic(h)
	case errors.As(err, &h):
		panic(&halt{h.kind, fmt.Errorf("%s: %w", im.Name, h.cause)})
	case errors.As(err, &e):
		panic(&halt{e.Kind, fmt.Errorf("%s: %w", im.Name, e.Cause)})
	default:
		panic(&halt{Failed, fmt.Errorf("%s: %w", im.Name, err)})
	}
}

// Read returns a view of n bytes of the module's memory, valid until the module runs again. It is for use by an Import,
// which must return the error unchanged; it ends the call with the kind Pointer.
func (i *Instance) Read(address, n uint32) ([]byte, error) {
	if b, ok := i.memory.Read(address, n); ok {
		return b, nil
	}
	return nil, halted(Pointer, "found %d bytes at %#x, but the memory ends at %#x", n, address, i.memorySize())
}

// Copy returns a copy of the bytes that Read returns a view of.
func (i *Instance) Copy(address, n uint32) ([]byte, error) {
	b, err := i.Read(address, n)
	if err != nil {
		return nil, err
	}
	own := make([]byte, n)
	copyPieces(own, b)
	return own, nil
}

// Write stores bytes to the module's memory. It is for use by an Import, as Read is.
func (i *Instance) Write(address uint32, data []byte) error {
	if i.memory.Write(address, data) {
		return nil
	}
	return halted(Pointer, "found %d bytes at %#x, but the memory ends at %#x", len(data), address, i.memory.Size())
}

// Charge adds units of work (about a nanosecond or less each) that the host did for the module to the units of the
// call. It is for use by an Import.
func (i *Instance) Charge(units int64) { i.fuel.Set(uint64(int64(i.fuel.Get()) - units)) }

// Batch is the batch of the call in progress, -1 outside of batches. It is for use by an Import.
func (i *Instance) Batch() int { return i.call.Batch }

// importsOf lists the functions that may be imported from a module of the host.
func (r *Runtime) importsOf(module string) []string {
	var names []string
	for key := range r.allowed {
		if name, of := strings.CutPrefix(key, module+"."); of {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// output collects what a call writes to its log. It passes lines to the user, and keeps the end for an error.
type output struct {
	line    func(string)
	left    int // bytes that may still be written
	dropped int
	partial []byte
	tail    []byte
}

func (o *output) write(b []byte) {
	n := min(len(b), o.left)
	o.left -= n
	o.dropped += len(b) - n
	b = b[:n]
	if o.tail = append(o.tail, b[max(0, n-maxTail):]...); len(o.tail) > maxTail {
		o.tail = append(o.tail[:0], o.tail[len(o.tail)-maxTail:]...)
	}
	for o.line != nil && len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		o.partial = append(o.partial, line...)
		if b = rest; ended {
			o.emit()
		}
	}
}

func (o *output) emit() {
	o.line(printable(o.partial))
	o.partial = o.partial[:0]
}

// flush ends the last line.
func (o *output) flush() {
	if o.line == nil {
		return
	}
	if len(o.partial) > 0 {
		o.emit()
	}
	if o.dropped > 0 {
		o.line(fmt.Sprintf("(%d more bytes were dropped)", o.dropped))
	}
}
