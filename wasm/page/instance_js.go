package page

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall/js"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/gpupipe/gpupipe/wasm/meter"
)

// instance is an instance of a module in the browser's engine. It belongs to one goroutine.
type instance struct {
	*Module
	options wasm.Options
	exports js.Value // nothing until it is instantiated
	fuel    js.Value
	funcs   []js.Func // that the module imports
	keys    wasm.Keys
	builder *graphhook.Builder // of the call in progress, if it writes a graph
	closed  bool
	call    call
}

// call is the call in progress.
type call struct {
	abi.Call
	logged int   // bytes
	halted *halt // why the host ends the call
}

// halt is why a call ends.
type halt struct {
	kind  wasm.Kind
	cause error
}

func (h *halt) Error() string { return h.cause.Error() }

func halted(k wasm.Kind, format string, a ...any) *halt { return &halt{k, fmt.Errorf(format, a...)} }

// throwing makes a function that throws the errors that another one returns: what Go gives JavaScript cannot throw.
func throwing(f js.Func) js.Value {
	return js.Global().Get("Function").New("f", "return (...args) => { const r = f(...args); if (r instanceof Error) throw r; return r; }").Invoke(f)
}

// open makes an instance: start function, _initialize, gpupipe_open.
func (m *Module) open(o wasm.Options) (*instance, error) {
	i := &instance{Module: m, options: o, keys: wasm.Keys{}}
	if i.options.Config == nil {
		i.options.Config = []byte("{}")
	}
	err := i.guard("start function", -1, m.limits.Budget, func() error {
		made, err := await(js.Global().Get("WebAssembly").Call("instantiate", m.compiled, i.imports()))
		if i.call.halted != nil {
			return i.call.halted
		}
		if err != nil {
			return err
		}
		i.exports = made.Get("exports")
		i.fuel = i.exports.Get(meter.Fuel)
		i.refill()
		return i.initialize()
	})
	if err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

func (i *instance) initialize() error {
	if i.kinds[abi.Init] == "function" {
		if _, err := i.invoke(abi.Init); err != nil {
			return err
		}
	}
	version, err := i.invoke(abi.Version)
	if err != nil {
		return err
	}
	if err := abi.CheckVersion(version); err != nil {
		return &halt{wasm.Refused, err}
	}
	if i.kinds[abi.Open] != "function" {
		return nil
	}
	config := i.options.Config
	address, err := i.alloc(len(config))
	if err == nil {
		err = i.Write(address, config)
	}
	if err != nil {
		return err
	}
	seed := js.Global().Call("BigInt", strconv.FormatUint(i.options.Seed, 10))
	if err := i.call.Status(i.invoke(abi.Open, address, len(config), seed)); err != nil {
		return err
	}
	return i.checkKeys()
}

// checkKeys refuses keys of the configuration that the module has not named, if it has named any.
func (i *instance) checkKeys() error {
	if err := i.keys.Check(i.options.Config); err != nil {
		return &abi.Failure{Text: err.Error()}
	}
	return nil
}

// close releases the functions that the module imports.
func (i *instance) close() {
	for _, f := range i.funcs {
		f.Release()
	}
	i.funcs, i.exports, i.closed = nil, js.Undefined(), true
}

// guard runs a call of the module, and classifies how it ends.
func (i *instance) guard(export string, batch int, budget int64, do func() error) error {
	fail := func(k wasm.Kind, cause error) error {
		return &wasm.Error{Hook: i.file, Export: export, Batch: batch, Kind: k, Cause: cause}
	}
	if i.closed {
		return fail(wasm.Closed, errors.New("an earlier call failed, or close was called"))
	}
	i.call = call{Call: abi.Begin(export, batch, budget, i.limits.Deadline)}
	if i.fuel.Truthy() {
		i.setFuel(0) // what the last call left over
		i.refill()
	}
	err := do()
	if err == nil && i.spent() {
		err = i.overdrawn()
	}
	if err == nil {
		return nil
	}
	var reported *abi.Failure
	if errors.As(err, &reported) {
		return fail(wasm.Failed, reported)
	}
	i.close()
	kind, cause := i.classify(err)
	return fail(kind, cause)
}

func (i *instance) classify(err error) (wasm.Kind, error) {
	var h *halt
	kind := wasm.Trap
	switch {
	case errors.As(err, &h):
		kind, err = h.kind, h.cause
	case strings.Contains(err.Error(), "call stack"):
		kind = wasm.Stack
	}
	switch {
	case i.call.Refused && kind == wasm.Trap:
		return wasm.Memory, fmt.Errorf("asked for more than %d pages of memory, then: %w", i.limits.MemoryPages, err)
	case kind == wasm.Trap && i.call.Message != "": // as a panic in Rust ends, which has said why
		return kind, fmt.Errorf("%s, then: %w", i.call.Message, err)
	}
	return kind, err
}

// invoke calls an export of the module; one without a result gives 0.
func (i *instance) invoke(export string, args ...any) (result int32, err error) {
	defer func() {
		if e := recover(); e != nil {
			thrown, ok := e.(js.Error)
			if !ok {
				panic(e)
			}
			err = errors.New(thrown.Value.Call("toString").String())
		}
		if i.call.halted != nil {
			err = i.call.halted
		}
	}()
	switch r := i.exports.Call(export, args...); r.Type() {
	case js.TypeNumber:
		return int32(r.Int()), nil
	case js.TypeUndefined:
		return 0, nil
	default:
		return 0, halted(wasm.Refused, "%s returned no i32, expected one", export)
	}
}

// alloc makes room in the module's memory.
func (i *instance) alloc(size int) (uint32, error) {
	want := (max(size, 16) + 15) &^ 15
	result, err := i.invoke(abi.Alloc, want)
	if err == nil {
		err = i.call.Status(0, nil)
	}
	address := uint32(result)
	switch {
	case err != nil:
		return 0, err
	case address == 0:
		return 0, halted(wasm.Memory, "%s(%d) returned 0: no memory is left, the limit is %d pages", abi.Alloc, want,
			i.limits.MemoryPages)
	case address%16 != 0:
		return 0, halted(wasm.Pointer, "%s(%d) returned %#x, expected a multiple of 16", abi.Alloc, want, address)
	}
	_, err = i.view(address, uint32(want))
	return address, err
}

// view is a part of the module's memory as JavaScript has it, valid until the module runs again.
func (i *instance) view(address, n uint32) (js.Value, error) {
	if !i.exports.Truthy() {
		return js.Value{}, halted(wasm.Pointer, "a start function called the host, expected no such call: the module's memory is not known yet")
	}
	memory := i.exports.Get(abi.Memory).Get("buffer")
	if end := memory.Get("byteLength").Float(); float64(address)+float64(n) > end {
		return js.Value{}, halted(wasm.Pointer, "found %d bytes at %#x, but the memory ends at %#x", n, address, int64(end))
	}
	return js.Global().Get("Uint8Array").New(memory, address, n), nil
}

// Read copies bytes out of the module's memory.
func (i *instance) Read(address, n uint32) ([]byte, error) {
	v, err := i.view(address, n)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	js.CopyBytesToGo(b, v)
	return b, nil
}

// Write copies bytes into the module's memory.
func (i *instance) Write(address uint32, data []byte) error {
	v, err := i.view(address, uint32(len(data)))
	if err == nil {
		js.CopyBytesToJS(v, data)
	}
	return err
}
