package page

import (
	"errors"
	"fmt"
	"strings"
	"syscall/js"
	"time"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/gpupipe/gpupipe/wasm/meter"
)

// imports are what the module imports, as the browser wants them.
func (i *instance) imports() map[string]any {
	functions := map[string]any{}
	add := func(name string, call func(args []uint32) (uint32, error)) {
		f := js.FuncOf(func(_ js.Value, args []js.Value) any {
			words := make([]uint32, len(args))
			for n, a := range args {
				words[n] = uint32(int64(a.Float())) // JavaScript has an i32 with its sign
			}
			r, err := call(words)
			if err != nil {
				return i.halt(name, err)
			}
			return r
		})
		i.funcs = append(i.funcs, f)
		functions[name] = throwing(f)
	}
	add("log", i.log)
	add("fail", i.fail)
	add("config_key", func(a []uint32) (uint32, error) {
		i.Charge(abi.HostCall)
		return 0, i.keys.Add(a[1], func() ([]byte, error) { return i.Read(a[0], a[1]) })
	})
	add("emit", func([]uint32) (uint32, error) {
		return 0, fmt.Errorf("called outside of %s, expected only within it", hook.MapDocument)
	})
	for _, im := range graphhook.Imports() {
		add(im.Name, func(args []uint32) (uint32, error) {
			if i.builder == nil {
				return 0, fmt.Errorf("called outside of %s, expected only within them", hook.BuildLoss+" and "+hook.BuildModel)
			}
			return im.Call(i.builder, i, args)
		})
	}
	add(meter.Tick, func(args []uint32) (uint32, error) { return 0, i.tick(args[0]) })
	return map[string]any{meter.ImportModule: functions}
}

// halt notes why the call ends, and returns the error that ends the module.
func (i *instance) halt(name string, err error) js.Value {
	var h *halt
	kind, cause := wasm.Failed, err
	if errors.As(err, &h) {
		kind, cause = h.kind, h.cause
	}
	if name != meter.Tick {
		cause = fmt.Errorf("%s: %w", name, cause)
	}
	i.call.halted = &halt{kind, cause}
	return js.Global().Get("Error").New(cause.Error())
}

func (i *instance) log(a []uint32) (uint32, error) {
	n := min(a[1], uint32(max(0, i.limits.LogBytes-i.call.logged)))
	b, err := i.Read(a[0], n)
	if err != nil {
		return 0, err
	}
	i.call.logged += len(b)
	i.Charge(abi.HostCall + int64(len(b))/8)
	if i.options.Log != nil && (len(b) > 0 || a[1] == 0) {
		i.options.Log(strings.ToValidUTF8(string(b), "\uFFFD"))
	}
	return 0, nil
}

func (i *instance) fail(a []uint32) (uint32, error) {
	b, err := i.Read(a[0], min(a[1], abi.MaxMessage))
	if err != nil {
		return 0, err
	}
	i.Charge(abi.HostCall)
	i.call.Failed, i.call.Message = true, strings.ToValidUTF8(string(b), "\uFFFD")
	return 0, nil
}

// The module's counter is an i64, which JavaScript has as a BigInt.

func (i *instance) getFuel() int64 {
	return int64(js.Global().Call("Number", i.fuel.Get("value")).Float())
}

func (i *instance) setFuel(n int64) { i.fuel.Set("value", js.Global().Call("BigInt", n)) }

// Charge adds work that the host did for the module to what the call has used.
func (i *instance) Charge(units int64) {
	if i.fuel.Truthy() {
		i.setFuel(i.getFuel() - units)
	}
}

// refill grants the module the next of its budget. It is false when there is nothing left.
func (i *instance) refill() bool {
	grant, ok := i.call.Refill(i.getFuel())
	i.setFuel(grant)
	return ok
}

// spent reports whether the call has used more than its budget since the last tick.
func (i *instance) spent() bool { return i.fuel.Truthy() && i.call.Exceeds(i.call.Used(i.getFuel())) }

func (i *instance) overdrawn() error { return &halt{wasm.Budget, i.call.Overdrawn()} }

// tick is called by the module itself, see package meter. A start function runs before its counter can be reached: only
// the clock bounds it.
func (i *instance) tick(reason uint32) error {
	switch reason {
	case meter.OutOfRoom:
		return halted(wasm.Stack, "made more than %d nested calls", i.limits.Depth)
	case meter.GrowthRefused:
		i.call.Refused = true
		return nil
	}
	if i.fuel.Truthy() && !i.refill() {
		return i.overdrawn()
	}
	if time.Now().After(i.call.Deadline) {
		return halted(wasm.Deadline, "took more than %v", i.limits.Deadline)
	}
	return nil
}
