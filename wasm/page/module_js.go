package page

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall/js"

	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/gpupipe/gpupipe/wasm/meter"
)

// Module is a compiled module.
type Module struct {
	file     string
	hook     string
	compiled js.Value
	limits   wasm.Limits
	kinds    map[string]string // of exports, by name
}

// Load checks, meters and compiles a module that is wanted for a hook; file is what messages call it. Every error is a
// *wasm.Error.
func Load(file, hook string, bin []byte, l wasm.Limits) (*Module, error) {
	m := &Module{file: file, hook: hook, limits: l.WithDefaults(), kinds: map[string]string{}}
	if err := m.load(bin); err != nil {
		return nil, &wasm.Error{Hook: file, Batch: -1, Kind: wasm.Refused, Cause: err}
	}
	return m, nil
}

func (m *Module) load(bin []byte) (err error) {
	metered, err := meter.Rewrite(bin, meter.Options{MemoryPages: m.limits.MemoryPages, TableElements: m.limits.TableElements,
		Depth: m.limits.Depth, Import: permit})
	if err != nil {
		return err
	}
	bytes := js.Global().Get("Uint8Array").New(len(metered))
	js.CopyBytesToJS(bytes, metered)
	engine := js.Global().Get("WebAssembly")
	if m.compiled, err = await(engine.Call("compile", bytes)); err != nil {
		return err
	}
	list := engine.Get("Module").Call("exports", m.compiled)
	for i := range list.Length() {
		m.kinds[list.Index(i).Get("name").String()] = list.Index(i).Get("kind").String()
	}
	if m.kinds[abi.Memory] != "memory" {
		return fmt.Errorf("exports no memory %q", abi.Memory)
	}
	for _, name := range []string{abi.Version, abi.Alloc, m.hook} {
		if m.kinds[name] != "function" {
			return fmt.Errorf("does not export the function %s", name)
		}
	}
	return nil
}

// imports are the functions that a module may import, with their types as package meter writes them.
func imports() map[string]string {
	types := map[string]string{"log": "(i32, i32) → ()", "fail": "(i32, i32) → ()", "config_key": "(i32, i32) → ()",
		"emit": "(i32, i32) → ()"}
	for _, im := range graphhook.Imports() {
		types[im.Name] = "(" + strings.Join(slices.Repeat([]string{"i32"}, im.Params), ", ") + ") → (i32)"
	}
	return types
}

// permit says whether a module may have an import.
func permit(im meter.Import) error {
	want, known := imports()[im.Name]
	switch {
	case im.Kind != "function":
		return fmt.Errorf("imports the %s %s.%s, expected functions only; a module has its own memory", im.Kind, im.Module, im.Name)
	case im.Module != meter.ImportModule:
		return fmt.Errorf("imports %s.%s, expected a function of %s: a page supports no other", im.Module, im.Name, meter.ImportModule)
	case !known:
		return fmt.Errorf("imports %s.%s, expected a function that exists", im.Module, im.Name)
	case im.Type != want:
		return fmt.Errorf("imports %s.%s as %s, expected %s", im.Module, im.Name, im.Type, want)
	}
	return nil
}

// await waits for a promise.
func await(promise js.Value) (v js.Value, err error) {
	settled := make(chan struct{})
	ok := js.FuncOf(func(_ js.Value, args []js.Value) any {
		v = args[0]
		close(settled)
		return nil
	})
	defer ok.Release()
	no := js.FuncOf(func(_ js.Value, args []js.Value) any {
		err = errors.New(args[0].Call("toString").String())
		close(settled)
		return nil
	})
	defer no.Release()
	promise.Call("then", ok, no)
	<-settled
	return v, err
}
