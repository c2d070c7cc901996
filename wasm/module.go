package wasm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/gpupipe/gpupipe/wasm/meter"
)

const startFunction = "start function"

const i32, i64 = api.ValueTypeI32, api.ValueTypeI64

type functionType struct{ params, results []api.ValueType }

// The types of the ABI's exports, and the exports that a module must have.
var (
	abiExports = map[string]functionType{
		abi.Version: {nil, []api.ValueType{i32}},
		abi.Alloc:   {[]api.ValueType{i32}, []api.ValueType{i32}},
		abi.Init:    {},
		abi.Open:    {[]api.ValueType{i32, i32, i64}, []api.ValueType{i32}},
		abi.Save:    {[]api.ValueType{i32, i32}, []api.ValueType{i32}},
		abi.Load:    {[]api.ValueType{i32, i32}, []api.ValueType{i32}},
	}
	required = []string{abi.Version, abi.Alloc}
	hookType = functionType{[]api.ValueType{i32, i32}, []api.ValueType{i32}}
)

// Module is a compiled module. It may be used by several goroutines.
type Module struct {
	File     string // the file that it was loaded from
	runtime  *Runtime
	compiled wazero.CompiledModule
	limits   Limits
	hooks    map[string]bool // functions that can be called as hooks
	work     atomic.Int64    // see Peak
	memory   atomic.Uint64
}

// Peak returns the most units of work of one call so far, and the largest memory of an instance in bytes.
func (m *Module) Peak() (work int64, memory uint64) { return m.work.Load(), m.memory.Load() }

// used records the work and the memory of a call.
func (m *Module) used(work int64, memory uint64) {
	for old := m.work.Load(); work > old && !m.work.CompareAndSwap(old, work); old = m.work.Load() {
	}
	for old := m.memory.Load(); memory > old && !m.memory.CompareAndSwap(old, memory); old = m.memory.Load() {
	}
}

// Interface lists the functions that the module imports, as module.name, and the functions that it exports, in
// alphabetical order.
func (m *Module) Interface() (imports, exports []string) {
	for _, f := range m.compiled.ImportedFunctions() {
		if module, name, _ := f.Import(); module != meter.ImportModule || name != meter.Tick {
			imports = append(imports, module+"."+name)
		}
	}
	slices.Sort(imports)
	return slices.Compact(imports), slices.Sorted(maps.Keys(m.compiled.ExportedFunctions()))
}

// Limits returns the limits of the module's instances, with defaults filled in.
func (m *Module) Limits() Limits { return m.limits }

// Close frees the module's code. Close its instances first.
func (m *Module) Close() error { return m.compiled.Close(context.Background()) }

// Hooks lists the exported functions of the hooks' type, in alphabetical order.
func (m *Module) Hooks() []string {
	return slices.Sorted(maps.Keys(m.hooks))
}

// ErrNoHook is matched by CheckHook's error if the module exports no function of the name.
var ErrNoHook = errors.New("no such function")

type noHook struct{ error }

func (noHook) Is(target error) bool { return target == ErrNoHook }

// CheckHook returns an *Error of kind Refused if the module has no function of the name that can be called as a hook.
func (m *Module) CheckHook(name string) error {
	if _, abi := abiExports[name]; abi {
		return m.refused(fmt.Errorf("found the hook %q, expected another name: it is a function of the ABI", name))
	}
	err := m.exports(name, hookType)
	switch {
	case err == nil:
		return nil
	case m.compiled.ExportedFunctions()[name] == nil:
		err = noHook{err}
	}
	return m.refused(err)
}

// Stateful reports whether the module has state to save.
func (m *Module) Stateful() bool { return m.compiled.ExportedFunctions()[abi.Save] != nil }

func (m *Module) refused(err error) error {
	return &Error{Hook: m.File, Batch: -1, Kind: Refused, Cause: err}
}

// check compares the module's exports with the ABI.
func (m *Module) check() error {
	if m.compiled.ExportedMemories()[abi.Memory] == nil {
		return fmt.Errorf("exports no memory %q", abi.Memory)
	}
	functions := m.compiled.ExportedFunctions()
	for _, name := range slices.Sorted(maps.Keys(abiExports)) {
		if functions[name] == nil && !slices.Contains(required, name) {
			continue
		}
		if err := m.exports(name, abiExports[name]); err != nil {
			return err
		}
	}
	if (functions[abi.Save] == nil) != (functions[abi.Load] == nil) {
		return fmt.Errorf("exports only one of %s and %s, expected both or neither", abi.Save, abi.Load)
	}
	m.hooks = map[string]bool{}
	for name, f := range functions {
		if _, abi := abiExports[name]; !abi && typeOf(f) == signature(hookType.params, hookType.results) {
			m.hooks[name] = true
		}
	}
	return nil
}

func (m *Module) exports(name string, want functionType) error {
	f, text := m.compiled.ExportedFunctions()[name], signature(want.params, want.results)
	if f == nil {
		return fmt.Errorf("does not export the function %s %s; it exports %s", name, text, m.exported())
	}
	if got := typeOf(f); got != text {
		return fmt.Errorf("exports %s as %s, expected %s", name, got, text)
	}
	return nil
}

// exported lists the exported functions for a message.
func (m *Module) exported() string {
	names := slices.Sorted(maps.Keys(m.compiled.ExportedFunctions()))
	switch {
	case len(names) == 0:
		return "no function"
	case len(names) > 20:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:20], ", "), len(names)-20)
	}
	return strings.Join(names, ", ")
}

func typeOf(f api.FunctionDefinition) string { return signature(f.ParamTypes(), f.ResultTypes()) }

func signature(params, results []api.ValueType) string {
	list := func(types []api.ValueType) string {
		names := make([]string, len(types))
		for i, t := range types {
			names[i] = api.ValueTypeName(t)
		}
		return "(" + strings.Join(names, ", ") + ")"
	}
	return list(params) + " → " + list(results)
}
