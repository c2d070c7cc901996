// Package meter rewrites a WebAssembly module so that it pays for its work as it goes. Nothing else of the module
// changes: rewritten, it computes the same results.
//
// What it understands is WebAssembly Core 2.0 (SIMD, bulk memory, reference types, multi-value, sign extension,
// saturating conversions, mutable globals) and tail calls. Everything else is refused by name: threads, garbage
// collection, exception handling, memory64, several memories, relaxed SIMD, typed function references, extended
// constant expressions, components.
//
// # Work
//
// Work is counted in units, the same for a module on every machine: an instruction costs 1, a few cost more (an integer
// division 8 or 16, a call 4), and instructions that only give the code its structure cost nothing; opcode.go lists
// them. Bytes copied, filled, or grown into cost 1 for every 8, table entries 1 each; an instruction that copies or
// fills pays before it does. The counter is an i64 global, exported as [Fuel], from which every function pays when it
// is entered and every loop for each iteration: the instructions of its body, without the instructions of loops within
// it. Straight-line code behind a branch that costs at least [StraightLine] pays on its own when it is reached. Shorter
// code is paid for whether it is reached or not. So the cost of a path is exact up to short branches, and depends on
// the module alone.
//
// Where the counter has fallen below zero, at a function's entry, a loop's head or a bulk operation, the import
// [ImportModule].[Tick] is called with [OutOfFuel]. The host refills the counter and returns, or panics to end the
// call. Between two calls lie at most the counter's value and one function body of work. A memory.copy or memory.fill
// that the counter does not cover is done in pieces of a MiB, with a call before each.
//
// # Depth
//
// Each function that calls others takes 1 from the i32 global exported as [Room] on entry, and one more for every 32
// parameters, locals and operands, and gives it back when it returns. Below zero, tick is called with [OutOfRoom],
// which must not return. Room starts at Options.Depth.
//
// # Growth
//
// A memory's and a table's maximum are lowered to the options' limits. When memory.grow fails, tick is called with
// [GrowthRefused]; if it returns, the module sees -1, as WebAssembly has it.
package meter

import (
	"bytes"
	"fmt"
	"strings"
)

// Names that the rewriter adds. A module that has one of them already is refused.
const (
	ImportModule = "gpupipe"
	Tick         = "tick"         // function (i32 reason) → ()
	Fuel         = "gpupipe.fuel" // mutable i64, at first 0
	Room         = "gpupipe.room" // mutable i32, at first Options.Depth
)

// Reasons for which tick is called.
const (
	OutOfFuel     = 0
	OutOfRoom     = 1
	GrowthRefused = 2
)

// StraightLine is the number of units from which straight-line code behind a branch pays for itself.
const StraightLine = 24

// Options bound the module. A zero means the default.
type Options struct {
	MemoryPages   uint32 // the most memory in pages of 64 KiB; default 4,096, at most 65,536
	TableElements uint32 // the most elements of a table; default 65,536
	Depth         int32  // calls within calls; default 1,900

	// Free adds the names, but nothing that pays or counts: to measure what metering costs. Nothing ends such a module.
	Free bool

	// Import is asked about each import, unless it is nil; its error refuses the module.
	Import func(Import) error

	piece int32 // bytes of a memory.copy or memory.fill between two visits to the host; default 1 MiB, a tenth of a millisecond's
}

// Import is something that a module imports from the host.
type Import struct {
	Module, Name string
	Kind         string // function, table, memory or global
	Type         string // of a function: (i32, i64) → (i32)
}

func (i Import) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s.%s %s", i.Kind, i.Module, i.Name, i.Type))
}

func (o Options) withDefaults() Options {
	if o.MemoryPages == 0 {
		o.MemoryPages = 4096
	}
	if o.TableElements == 0 {
		o.TableElements = 1 << 16
	}
	if o.Depth == 0 {
		o.Depth = 1900
	}
	if o.piece == 0 {
		o.piece = 1 << 20
	}
	return o
}

// Limits of a module's size. With the limits of effort.go they bound the time and memory that compiling it takes: about
// ten seconds, and a second or two for each megabyte.
const (
	maxModule    = 16 << 20 // bytes
	maxTypes     = 20_000
	maxImports   = 1_000
	maxFunctions = 100_000
	maxTables    = 16
	maxGlobals   = 20_000
	maxExports   = 20_000
	maxSegments  = 100_000
	maxElements  = 1_000_000 // of all element segments
	maxParams    = 1_000     // and results, of a function or block
	maxBody      = 1 << 20   // bytes of a function
	maxLocals    = 10_000    // and parameters
	maxLabels    = 16_384    // of all br_table of a function
)

// sections gives each section's name and its place in a module.
var sections = map[byte]struct {
	name  string
	place int
}{
	1: {"type section", 1}, 2: {"import section", 2}, 3: {"function section", 3}, 4: {"table section", 4},
	5: {"memory section", 5}, 6: {"global section", 6}, 7: {"export section", 7}, 8: {"start section", 8},
	9: {"element section", 9}, 12: {"data count section", 10}, 10: {"code section", 11}, 11: {"data section", 12},
}

// Rewrite returns the metered module; bin is not changed. An error is an *Error. A module that gets through may still
// be invalid: operand types are checked by the compiler of the result, not here.
func Rewrite(bin []byte, o Options) (out []byte, err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *Error:
			out, err = nil, e
		default:
			panic(e)
		}
	}()
	m := &module{Options: o.withDefaults(), content: map[byte]*reader{}}
	m.split(bin)
	m.scan()
	return m.write(), nil
}

// module holds the facts about the module that is being rewritten, and what rewriting adds to it.
type module struct {
	Options
	content map[byte]*reader // sections by id
	names   []byte           // content of the name section, behind its name

	types      []funcType
	functions  []uint32 // type of every function, imported ones first
	imported   int      // number of imported functions
	globals    int
	tables     int
	tableSizes []uint32 // at first
	memories   int
	segments   int   // of data, as the data count section has it; -1 without one
	elements   int   // element segments
	effort     int64 // to compile the functions so far
	extra      additions
}

// additions are the types and functions that are added behind the module's own. The first type is Tick's.
type additions struct {
	first        uint32 // index of the first type
	types        int
	encoded      []byte            // the types
	resultBlocks map[string]uint32 // by several results: the type () → results
	threeInts    uint32            // see piecesType; 0: not added
	pieces       map[int]uint32    // functions by opcode, see module.pieces
	code         [][]byte          // bodies of the functions, all of type threeInts
}

// addType adds a type and returns its index.
func (a *additions) addType(encoded ...byte) uint32 {
	a.encoded = append(a.encoded, encoded...)
	a.types++
	return a.first + uint32(a.types) - 1
}

type funcType struct{ params, results []byte }

func (t funcType) String() string { return typeList(t.params) + " → " + typeList(t.results) }

func typeList(types []byte) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = valTypeNames[t]
	}
	return "(" + strings.Join(names, ", ") + ")"
}

// split finds the sections.
func (m *module) split(bin []byte) {
	r := &reader{b: bin, where: "module"}
	switch {
	case len(bin) > maxModule:
		r.refuse("found %d bytes, expected at most %d", len(bin), maxModule)
	case bytes.HasPrefix(bytes.TrimLeft(bin, " \t\r\n"), []byte("(")):
		r.refuse("is WebAssembly in text format: assemble it first")
	case len(bin) < 8 || string(bin[:4]) != "\x00asm":
		r.refuse("is not WebAssembly: it does not begin with \"\\0asm\" and a version")
	case string(bin[4:8]) == "\x0d\x00\x01\x00":
		r.refuse("is a component, expected a core module")
	case string(bin[4:8]) != "\x01\x00\x00\x00":
		r.refuse("version bytes % x, expected 01 00 00 00", bin[4:8])
	}
	r.i = 8
	for place := 0; r.more(); {
		id := r.byte()
		s, known := sections[id]
		switch {
		case id == 0:
			m.custom(r.sub(r.u32(), "custom section"))
			continue
		case id == 13:
			r.refuse("exception handling is not supported (tag section)")
		case !known:
			r.refuse("section %d is unknown", id)
		case s.place <= place:
			r.refuse("%s is repeated or out of order", s.name)
		}
		place = s.place
		m.content[id] = r.sub(r.u32(), s.name)
	}
}

func (m *module) custom(r *reader) {
	if r.name() == "name" {
		m.names = r.b[r.i:]
	}
}

// vector reads each entry of a section, if there is one. It returns their number.
func (m *module) vector(id byte, what string, limit int, entry func(r *reader, i int)) (n int) {
	r := m.content[id]
	if r == nil {
		return 0
	}
	r.i = 0
	n = r.count(what, limit)
	for i := range n {
		entry(r, i)
	}
	r.end()
	return n
}

// scan reads what the other sections refer to.
func (m *module) scan() {
	m.vector(1, "types", maxTypes, func(r *reader, _ int) { m.types = append(m.types, r.funcType()) })
	m.extra = additions{first: uint32(len(m.types)), resultBlocks: map[string]uint32{}, pieces: map[int]uint32{}}
	m.extra.addType(0x60, 1, 0x7f, 0)
	m.vector(2, "imports", maxImports, m.scanImport)
	m.imported = len(m.functions)
	m.vector(3, "functions", maxFunctions, func(r *reader, _ int) {
		m.functions = append(m.functions, r.index("type", len(m.types)))
	})
	if r := m.content[4]; r != nil {
		m.tables += r.count("tables", maxTables)
	}
	if r := m.content[5]; r != nil {
		m.memories += r.count("memories", 1)
	}
	if m.memories > 1 {
		m.content[2].refuse("several memories are not supported (one imported, one defined)")
	}
	if r := m.content[6]; r != nil {
		m.globals += r.count("globals", maxGlobals)
	}
	if r := m.content[9]; r != nil {
		m.elements = r.count("element segments", maxSegments)
	}
	m.segments = -1
	if r := m.content[12]; r != nil {
		m.segments = int(r.u32())
		r.end()
	}
}

func (m *module) scanImport(r *reader, _ int) {
	mod, name := r.name(), r.name()
	im := Import{Module: mod, Name: name}
	switch kind := r.byte(); kind {
	case 0:
		if mod == ImportModule && name == Tick {
			r.refuse("imports %s.%s, which is the host's own", mod, name)
		}
		t := r.index("type", len(m.types))
		m.functions = append(m.functions, t)
		im.Kind, im.Type = "function", m.types[t].String()
	case 1:
		im.Kind = "table"
		r.refType()
		r.limits("table", 1<<32-1)
		m.tables++
	case 2:
		im.Kind = "memory"
		r.limits("memory", 1<<16)
		m.memories++
	case 3:
		im.Kind = "global"
		r.globalType()
		m.globals++
	case 4:
		r.refuse("exception handling is not supported (import %q.%q is a tag)", mod, name)
	default:
		r.refuse("import %q.%q is of the unknown kind %d", mod, name, kind)
	}
	if m.memories > 1 {
		r.refuse("several memories are not supported")
	}
	if m.Import != nil {
		if err := m.Import(im); err != nil {
			r.refuse("%v", err)
		}
	}
}

// resultBlock is a block type without parameters and the results of a function type.
func (m *module) resultBlock(b []byte, typ uint32) []byte {
	switch results := m.types[typ].results; len(results) {
	case 0:
		return append(b, 0x40)
	case 1:
		return append(b, results[0])
	default:
		block, known := m.extra.resultBlocks[string(results)]
		if !known {
			block = m.extra.addType(append(appendU32([]byte{0x60, 0}, uint32(len(results))), results...)...)
			m.extra.resultBlocks[string(results)] = block
		}
		return appendS64(b, int64(block))
	}
}

func (m *module) shift(f uint32) uint32 {
	if int(f) >= m.imported {
		f++
	}
	return f
}

func (m *module) fuelGlobal() uint32 { return uint32(m.globals) }
func (m *module) roomGlobal() uint32 { return uint32(m.globals) + 1 }

func (r *reader) funcType() funcType {
	switch form := r.byte(); form {
	case 0x60:
	case 0x4e, 0x4f, 0x50, 0x5e, 0x5f:
		r.refuse("garbage collection is not supported (type form %#x)", form)
	default:
		r.refuse("type form %#x, expected 0x60", form)
	}
	return funcType{r.valTypes(), r.valTypes()}
}

func (r *reader) valTypes() []byte {
	n := r.count("parameters or results", maxParams)
	start := r.i
	for range n {
		r.valType()
	}
	return r.b[start:r.i]
}

var valTypeNames = map[byte]string{0x7f: "i32", 0x7e: "i64", 0x7d: "f32", 0x7c: "f64", 0x7b: "v128", 0x70: "funcref", 0x6f: "externref"}

func (r *reader) valType() byte {
	t := r.byte()
	switch {
	case valTypeNames[t] != "":
	case t == 0x63 || t == 0x64:
		r.refuse("typed function references are not supported (value type %#x)", t)
	case t == 0x69 || t == 0x74:
		r.refuse("exception handling is not supported (value type %#x)", t)
	case t >= 0x6a && t <= 0x73:
		r.refuse("garbage collection is not supported (value type %#x)", t)
	default:
		r.refuse("value type %#x is unknown", t)
	}
	return t
}

func (r *reader) refType() byte {
	t := r.valType()
	if t != 0x70 && t != 0x6f {
		r.refuse("type %s, expected funcref or externref", valTypeNames[t])
	}
	return t
}

func (r *reader) globalType() {
	r.valType()
	if mut := r.byte(); mut > 1 {
		r.refuse("mutability %d, expected 0 or 1", mut)
	}
}

// limits reads a minimum and a maximum; without one, the maximum is most.
func (r *reader) limits(what string, most uint64) (lo, hi uint32) {
	flags := r.byte()
	switch {
	case flags&^7 != 0:
		r.refuse("limits of a %s have the unknown flags %#x", what, flags)
	case flags&4 != 0:
		r.refuse("memory64 is not supported (limits of a %s)", what)
	case flags&2 != 0:
		r.refuse("threads are not supported (a shared %s)", what)
	}
	lo = r.u32()
	hi = uint32(min(most, 1<<32-1))
	if flags&1 != 0 {
		hi = r.u32()
	}
	if uint64(lo) > most || uint64(hi) > most || lo > hi {
		r.refuse("found limits %d to %d of a %s, expected at most %d and in order", lo, hi, what, most)
	}
	return lo, hi
}
