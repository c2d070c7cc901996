// Package wasmtest writes WebAssembly modules by hand, for tests: a module is what its sections hold, code is bytes
// from the helpers in code.go. It checks nothing, so that tests can write what no tool would.
package wasmtest

import "slices"

// Value types.
const (
	I32       = 0x7f
	I64       = 0x7e
	F32       = 0x7d
	F64       = 0x7c
	V128      = 0x7b
	FuncRef   = 0x70
	ExternRef = 0x6f
	Empty     = 0x40 // block type without results
)

// Types is a list of value types.
type Types = []byte

// Func is a function with a body (its last end is added).
type Func struct {
	Params, Results Types
	Locals          Types  // one each
	Declared        []byte // encoded declaration of locals, in place of Locals
	Body            []byte
	Export          string
}

// Import is an imported function.
type Import struct {
	Module, Name    string
	Params, Results Types
}

// Global has a type, a constant expression without its end, and may be exported.
type Global struct {
	Type    byte
	Mutable bool
	Init    []byte
	Export  string
}

// Limits of a memory or table; Max 0 means none.
type Limits struct {
	Min, Max uint32
	Export   string
}

// Data is a segment; with Passive, Offset is not used.
type Data struct {
	Offset  []byte // constant expression without its end
	Bytes   []byte
	Passive bool
}

// Module is encoded by Encode. Types of functions and imports are added as needed, behind Types.
type Module struct {
	Types     []Func // only their types
	Imports   []Import
	Funcs     []Func
	Tables    []Limits // of funcref
	Memories  []Limits
	Globals   []Global
	Start     *uint32
	Elements  [][]byte // each segment encoded
	Data      []Data
	DataCount bool              // write the section
	Custom    map[string][]byte // at the end
	Exports   [][]byte          // further ones, encoded
}

// Encode writes the module in the binary format.
func (m *Module) Encode() []byte {
	var types [][]byte
	typ := func(params, results Types) uint32 {
		t := append([]byte{0x60}, vec(params)...)
		t = append(t, vec(results)...)
		i := slices.IndexFunc(types, func(o []byte) bool { return slices.Equal(o, t) })
		if i < 0 {
			i = len(types)
			types = append(types, t)
		}
		return uint32(i)
	}
	for _, t := range m.Types {
		t := append(append([]byte{0x60}, vec(t.Params)...), vec(t.Results)...)
		types = append(types, t)
	}
	var imports, funcs, codes, exports, tables, memories, globals, data [][]byte
	export := func(name string, kind byte, index int) {
		if name != "" {
			exports = append(exports, Export(name, kind, uint32(index)))
		}
	}
	for _, im := range m.Imports {
		e := append(Name(im.Module), Name(im.Name)...)
		imports = append(imports, append(append(e, 0), U32(typ(im.Params, im.Results))...))
	}
	for i, f := range m.Funcs {
		funcs = append(funcs, U32(typ(f.Params, f.Results)))
		var locals [][]byte
		for _, l := range f.Locals {
			locals = append(locals, []byte{1, l})
		}
		declared := List(locals...)
		if f.Declared != nil {
			declared = f.Declared
		}
		code := append(append(declared, f.Body...), 0x0b)
		codes = append(codes, vec(code))
		export(f.Export, 0, len(m.Imports)+i)
	}
	for i, t := range m.Tables {
		tables = append(tables, append([]byte{FuncRef}, t.encode()...))
		export(t.Export, 1, i)
	}
	for i, l := range m.Memories {
		memories = append(memories, l.encode())
		export(l.Export, 2, i)
	}
	for i, g := range m.Globals {
		mut := byte(0)
		if g.Mutable {
			mut = 1
		}
		globals = append(globals, append(append([]byte{g.Type, mut}, g.Init...), 0x0b))
		export(g.Export, 3, i)
	}
	for _, d := range m.Data {
		e := []byte{1}
		if !d.Passive {
			e = append(append([]byte{0}, d.Offset...), 0x0b)
		}
		data = append(data, append(e, vec(d.Bytes)...))
	}
	out := []byte("\x00asm\x01\x00\x00\x00")
	emit := func(id byte, entries [][]byte) {
		if len(entries) > 0 {
			out = append(out, Section(id, List(entries...))...)
		}
	}
	emit(1, types)
	emit(2, imports)
	emit(3, funcs)
	emit(4, tables)
	emit(5, memories)
	emit(6, globals)
	emit(7, append(exports, m.Exports...))
	if m.Start != nil {
		out = append(out, Section(8, U32(*m.Start))...)
	}
	emit(9, m.Elements)
	if m.DataCount {
		out = append(out, Section(12, U32(uint32(len(data))))...)
	}
	emit(10, codes)
	emit(11, data)
	for name, content := range m.Custom {
		out = append(out, Section(0, append(Name(name), content...))...)
	}
	return out
}

func (l Limits) encode() []byte {
	if l.Max == 0 {
		return append([]byte{0}, U32(l.Min)...)
	}
	return append(append([]byte{1}, U32(l.Min)...), U32(l.Max)...)
}

// Section is one with an id.
func Section(id byte, content []byte) []byte { return append([]byte{id}, vec(content)...) }

// List is a vector of encoded entries.
func List(entries ...[]byte) []byte {
	return append(U32(uint32(len(entries))), slices.Concat(entries...)...)
}

// Export is an entry of the export section; kind 0 is a function, 1 a table, 2 a memory, 3 a global.
func Export(name string, kind byte, index uint32) []byte {
	return append(append(Name(name), kind), U32(index)...)
}

// ActiveElements is a segment of functions for table 0.
func ActiveElements(offset int32, functions ...uint32) []byte {
	e := append(append([]byte{0}, Const(offset)...), 0x0b)
	e = append(e, U32(uint32(len(functions)))...)
	for _, f := range functions {
		e = append(e, U32(f)...)
	}
	return e
}

func vec(b []byte) []byte { return append(U32(uint32(len(b))), b...) }

// Name is text with its length.
func Name(s string) []byte { return vec([]byte(s)) }

// Hook is a module that exports one hook, which returns 0.
func Hook(name string) Module {
	result := Types{I32}
	return Module{
		Memories: []Limits{{Min: 1, Export: "memory"}},
		Funcs: []Func{
			{Export: "gpupipe_abi_v1", Results: result, Body: Const(0)},
			{Export: "gpupipe_alloc", Params: Types{I32}, Results: result, Body: Const(1024)},
			{Export: name, Params: Types{I32, I32}, Results: result, Body: Const(0)},
		},
	}
}
