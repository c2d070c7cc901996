package meter

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
)

// cost runs a function of a module and gives the work it took, the same on both engines.
func cost(t *testing.T, m *w.Module, args ...uint64) int64 {
	t.Helper()
	metered, err := Rewrite(m.Encode(), Options{})
	require.NoError(t, err)
	var work []int64
	for _, c := range []wazero.RuntimeConfig{wazero.NewRuntimeConfig(), wazero.NewRuntimeConfigInterpreter()} {
		h := newHost(t, c)
		i, err := h.Instantiate(context.Background(), metered)
		require.NoError(t, err)
		_, err = i.ExportedFunction("f").Call(context.Background(), args...)
		require.NoError(t, err)
		work = append(work, 1<<40-h.left-int64(i.ExportedGlobal(Fuel).Get()))
		assert.EqualValues(t, 1900, i.ExportedGlobal(Room).Get(), "room is given back")
	}
	require.Equal(t, work[0], work[1])
	return work[0]
}

func function(params, results w.Types, parts ...any) *w.Module {
	return &w.Module{Funcs: []w.Func{{Export: "f", Params: params, Results: results, Body: w.Seq(parts...)}},
		Memories: []w.Limits{{Min: 1}}, Tables: []w.Limits{{Min: 1}}}
}

func TestCosts(t *testing.T) {
	i := w.Types{w.I32}
	long := w.Repeat(StraightLine/2, w.Seq(w.Const(1), w.Drop))
	short := w.Seq(w.Const(1), w.Drop)
	div := w.Seq(w.Const(1), w.Const(1), w.I32DivS, w.Drop)
	countdown := w.Loop(w.Empty, w.Get(0), w.Const(1), w.I32Sub, w.Tee(0), w.BrIf(0)) // 5 a turn
	for _, c := range []struct {
		name   string
		module *w.Module
		arg    uint64
		want   int64
	}{
		{"nothing", function(i, nil), 0, 0},
		{"structure", function(i, nil, w.Block(w.Empty, w.Nop, w.Block(w.Empty))), 0, 0},
		{"straight", function(i, nil, short, short, div), 0, 2 + 2 + 2 + 8 + 1},
		{"a loop", function(i, nil, countdown), 10, 50},
		{"a loop within a loop", function(w.Types{w.I32, w.I32}, nil, w.Loop(w.Empty, w.Const(3), w.Set(0), countdown, w.Get(1),
			w.Const(1), w.I32Sub, w.Tee(1), w.BrIf(0))), 0, 2 + 15 + 5},
		{"a short branch, taken or not", function(i, nil, w.Get(0), w.If(w.Empty, short)), 0, 2 + 2},
		{"a long branch not taken", function(i, nil, w.Get(0), w.If(w.Empty, long)), 0, 2},
		{"a long branch taken", function(i, nil, w.Get(0), w.If(w.Empty, long)), 1, 2 + StraightLine},
		{"one of two", function(i, nil, w.Get(0), w.If(w.Empty, long, w.Else, long, short)), 0, 2 + StraightLine + 2},
		{"behind a branch that is taken", function(i, nil, w.Block(w.Empty, w.Get(0), w.BrIf(0), long), short), 1, 2 + 2},
		{"a fill", function(i, nil, w.Const(0), w.Const(0), w.Get(0), w.MemoryFill()), 8000, 3 + 16 + 1000},
		{"a copy", function(i, nil, w.Const(0), w.Const(0), w.Get(0), w.MemoryCopy()), 8007, 3 + 16 + 1000},
		{"growth", function(i, nil, w.Get(0), w.MemoryGrow(), w.Drop), 3, 1 + 64 + 1 + 3*8192},
		{"growth refused", function(i, nil, w.Get(0), w.MemoryGrow(), w.Drop), 1 << 20, 1 + 64 + 1},
		{"a table's growth", function(i, nil, w.RefNull(), w.Get(0), w.TableGrow(), w.Drop), 7, 2 + 64 + 1 + 7},
		{"a table's fill", function(i, nil, w.Const(0), w.RefNull(), w.Get(0), w.TableFill()), 1, 3 + 16 + 1},
		{"a return early", function(i, i, w.Get(0), w.If(w.Empty, w.Const(5), w.Return), w.Const(1), w.Call(0)), 1, 2 + 2 + 1 + 4},
		{"a call", function(i, i, w.Get(0), w.If(w.Empty, w.Const(5), w.Return), w.Const(1), w.Call(0)), 0, 2 * (2 + 2 + 1 + 4)},
		{"a call with eight results", &w.Module{Funcs: []w.Func{
			{Export: "f", Params: i, Body: w.Seq(w.Call(1), w.Repeat(8, []byte{w.Drop}))},
			{Results: w.Repeat(8, i), Body: w.Repeat(8, w.Const(1))},
		}}, 0, 4 + 8/4 + 8 + 8/4 + 8},
		{"a tail call", function(i, i, w.Get(0), w.If(w.Empty, w.Const(5), w.Return), w.Const(1), w.ReturnCall(0)), 0, 2 * (2 + 2 + 1 + 4)},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := make([]uint64, len(c.module.Funcs[0].Params))
			args[0] = c.arg
			if len(args) == 2 {
				args[1] = 1
			}
			assert.Equal(t, c.want, cost(t, c.module, args...))
		})
	}
}

func TestDepth(t *testing.T) {
	m := function(w.Types{w.I32}, w.Types{w.I32}, w.Get(0), w.If(w.I32, w.Get(0), w.Const(1), w.I32Sub, w.Call(0), w.Else, w.Const(7)))
	// calls within calls of 100 room; beside the locals there are a parameter and two operands
	for locals, most := range map[int]uint64{0: 99, 28: 99, 29: 49} {
		m.Funcs[0].Locals = w.Repeat(locals, []byte{w.I64})
		metered, err := Rewrite(m.Encode(), Options{Depth: 100})
		require.NoError(t, err)
		i, err := newHost(t, wazero.NewRuntimeConfig()).Instantiate(context.Background(), metered)
		require.NoError(t, err)
		got, err := i.ExportedFunction("f").Call(context.Background(), most)
		require.NoError(t, err)
		assert.EqualValues(t, 7, got[0])
		_, err = i.ExportedFunction("f").Call(context.Background(), most+1)
		assert.ErrorIs(t, err, errStack, "%d locals", locals)
	}
}

func TestRefusals(t *testing.T) {
	header := "\x00asm\x01\x00\x00\x00"
	section := func(id byte, content ...any) []byte {
		return append([]byte(header), w.Section(id, w.Seq(content...))...)
	}
	code := func(parts ...any) []byte { return function(nil, nil, parts...).Encode() }
	for _, c := range []struct {
		bin  []byte
		want string
	}{
		{nil, "module (byte 0): is not WebAssembly: it does not begin with \"\\0asm\" and a version"},
		{[]byte("\n (module)"), "is WebAssembly in text format: assemble it first"},
		{[]byte("\x7fELF\x01\x00\x00\x00"), "is not WebAssembly"},
		{[]byte("\x00asm\x0d\x00\x01\x00"), "is a component, expected a core module"},
		{[]byte("\x00asm\x02\x00\x00\x00"), "version bytes 02 00 00 00, expected 01 00 00 00"},
		{make([]byte, maxModule+1), "expected at most 16777216"},
		{section(13, 0), "exception handling is not supported (tag section)"},
		{section(14, 0), "section 14 is unknown"},
		{append(section(2, 0), w.Section(1, []byte{0})...), "type section is repeated or out of order"},
		{append(section(1, 0), 1, 1, 0), "type section is repeated or out of order"},
		{append([]byte(header), 1, 200, 1), "found a length of 200 bytes, expected at most the 0 that are left"},
		{section(1, 1, 0x5f, 0), "garbage collection is not supported (type form 0x5f)"},
		{section(1, 1, 0x61, 0), "type form 0x61, expected 0x60"},
		{section(1, 1, 0x60, 1, 0x64, 0, 0), "typed function references are not supported (value type 0x64)"},
		{section(1, 1, 0x60, 1, 0x69, 0, 0), "exception handling is not supported (value type 0x69)"},
		{section(1, 1, 0x60, 1, 0x6e, 0, 0), "garbage collection is not supported (value type 0x6e)"},
		{section(1, 1, 0x60, 1, 0x10, 0, 0), "value type 0x10 is unknown"},
		{section(1, 0, 0), "type section (byte 11): has 1 bytes after its entries"},
		{section(1, 200, 1), "found 200 types in 0 bytes"},
		{section(2, 1, w.Name("a"), w.Name("t"), 4, 0, 0), `exception handling is not supported (import "a"."t" is a tag)`},
		{section(2, 2, w.Name("a"), w.Name("m"), 2, 0, 1, w.Name("a"), w.Name("m"), 2, 0, 1), "several memories are not supported"},
		{section(5, 1, 3, 1, 2), "threads are not supported (a shared memory)"},
		{section(5, 1, 4, 1), "memory64 is not supported (limits of a memory)"},
		{section(5, 1, 8, 1), "limits of a memory have the unknown flags 0x8"},
		{section(5, 1, 1, 2, 1), "limits 2 to 1 of a memory"},
		{section(5, 1, 0, w.U32(5000)), "found a memory of at least 5000 pages, expected at most 4096"},
		{section(4, 1, 0x40, 0, 0x70, 0, 1), "typed function references are not supported (a table with an initializer)"},
		{section(6, 1, 0x7f, 0, w.Const(1), w.Const(1), w.I32Add, w.End), "extended constant expressions are not supported (opcode 0x6a)"},
		{section(6, 1, 0x7f, 2, w.Const(1), w.End), "mutability 2, expected 0 or 1"},
		{section(6, 1, 0x7f, 0, 0xfd, 13), "opcode 0xfd 0x0d in a constant expression, expected v128.const"},
		{section(7, 1, w.Name("x"), 0, 0), "function 0 does not exist, there are 0"},
		{section(7, 1, w.Name("\xff"), 0, 0), `name "\xff" is not UTF-8`},
		{section(7, 1, w.Name("gpupipe.room"), 0, 0), `exports "gpupipe.room", which is the host's own`},
		{section(9, 1, 9), "an element segment of the unknown kind 9"},
		{section(9, 1, 1, 7, 0), "an element segment of element kind 7, expected 0"},
		{section(11, 1, 3), "a data segment of the unknown kind 3"},
		{append(section(12, 2), w.Section(11, []byte{0})...), "does not have as many segments as the data count section says"},
		{append(section(1, 1, 0x60, 0, 0), w.Section(3, []byte{1, 0})...), "1 functions without a code section"},
		{code(0xfe, 0x03, 0), "threads is not supported (opcode 0xfe 0x03)"},
		{code(0x1f, w.Empty), "exception handling is not supported (opcode 0x1f)"},
		{code(0xfb, 1), "garbage collection is not supported (opcode 0xfb 0x01)"},
		{code(0x14, 0), "typed function references is not supported (opcode 0x14)"},
		{code(0xfd, 0x80, 0x02), "relaxed SIMD is not supported (opcode 0xfd 0x100)"},
		{code(0xfd, 0x9a, 0x01), "opcode 0xfd 0x9a is unknown"},
		{code(0xfc, 0x13), "wide arithmetic is not supported (opcode 0xfc 0x13)"},
		{code(0xff), "code section, function 0 (byte 42): opcode 0xff is unknown"},
		{code(w.Const(0), 0x28, 0x42, 1, 0), "several memories are not supported (alignment 0x42)"},
		{code(w.Const(0), 0x40, 1), "several memories are not supported (memory 1)"},
		{code(0xfc, 9, 0), "needs a data count section"},
		{code(0x1c, 2, 0x7f, 0x7f), "select with 2 result types, expected 1"},
	} {
		out, err := Rewrite(c.bin, Options{})
		assert.Nil(t, out)
		var e *Error
		require.ErrorAs(t, err, &e, "%s", c.want)
		assert.ErrorContains(t, err, c.want)
	}
}

// The optional import check sees every kind of import, and its error refuses the module.
func TestImportsAreShown(t *testing.T) {
	m := &w.Module{Imports: []w.Import{{Module: "env", Name: "f", Params: w.Types{w.I32, w.F64}, Results: w.Types{w.V128}}}}
	_, err := Rewrite(m.Encode(), Options{Import: func(im Import) error { return fmt.Errorf("no %s", im) }})
	assert.ErrorContains(t, err, "import section (byte 28): no function env.f (i32, f64) → (v128)")
}

// Names of functions move with their indices, so that traces are right.
func TestNames(t *testing.T) {
	m := &w.Module{
		Imports: []w.Import{{Module: ImportModule, Name: "other"}},
		Funcs:   []w.Func{{Export: "f", Body: w.Call(2)}, {Body: []byte{w.Unreachable}}},
		Custom: map[string][]byte{"name": w.Seq(
			w.Section(0, w.Name("mod")), w.Section(1, w.List(w.Seq(1, w.Name("outer")), w.Seq(2, w.Name("inner")))),
			w.Section(2, []byte{0}))},
	}
	metered, err := Rewrite(m.Encode(), Options{})
	require.NoError(t, err)
	assert.Contains(t, string(metered), "\x01\x0f\x02\x02\x05outer\x03\x05inner")
	m.Custom["name"] = []byte{1, 9, 9, 9}
	metered, err = Rewrite(m.Encode(), Options{})
	require.NoError(t, err, "names that cannot be read are omitted")
	assert.NotContains(t, string(metered), "name")
}

// Numbers are read as they were written, and nothing longer than allowed.
func TestNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 100_000 {
		v := int64(r.Uint64()) >> r.IntN(64)
		if n < 8 {
			v = []int64{0, -1, math.MinInt64, math.MaxInt64, math.MinInt32, math.MaxInt32, 63, -64}[n]
		}
		b := appendS64(nil, v)
		assert.Equal(t, w.S64(v), b)
		require.Equal(t, v, (&reader{b: b}).signed(64))
		require.Equal(t, int64(int32(v)), (&reader{b: appendS64(nil, int64(int32(v)))}).signed(32))
		require.Equal(t, v<<31>>31, (&reader{b: appendS64(nil, v<<31>>31)}).signed(33))
		require.Equal(t, uint32(v), (&reader{b: appendU32(nil, uint32(v))}).u32())
		require.Equal(t, binary.AppendUvarint(nil, uint64(uint32(v))), appendU32(nil, uint32(v)))
	}
	padded := []byte{0x80, 0x80, 0x80, 0x80, 0x00}
	assert.Zero(t, (&reader{b: padded}).u32())
	assert.EqualValues(t, -1, (&reader{b: []byte{0xff, 0xff, 0xff, 0xff, 0x7f}}).signed(32))
	for _, b := range [][]byte{{0x80, 0x80, 0x80, 0x80, 0x80, 0}, {0xff, 0xff, 0xff, 0xff, 0x1f}} {
		assert.Panics(t, func() { (&reader{b: b}).u32() })
	}
	for _, b := range [][]byte{{0x80, 0x80, 0x80, 0x80, 0x80, 0}, {0xff, 0xff, 0xff, 0xff, 0x0f}, {0x80, 0x80, 0x80, 0x80, 0x70}} {
		assert.Panics(t, func() { (&reader{b: b}).signed(32) })
	}
	assert.Panics(t, func() { (&reader{b: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}}).signed(64) })
}
