package wasm

import (
	"context"
	"strings"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

// compileBombs are small modules that would take a compiler minutes, or gigabytes.
func compileBombs() []hostile {
	many := func(locals int, parts ...any) *w.Module {
		return with(misbehaves(w.Seq(parts...), w.Const(0)), func(m *w.Module) { m.Funcs[2].Locals = w.Repeat(locals, []byte{w.I32}) })
	}
	each := func(locals int) (code []byte) {
		for l := range locals {
			code = append(code, w.Seq(w.Get(uint32(2+l)), w.Const(1), w.I32Add, w.Set(uint32(2+l)))...)
		}
		return code
	}
	skip := w.Seq(w.Get(0), w.If(w.Empty, w.Const(1), w.Set(1)))
	turn := w.Loop(w.Empty, w.Get(0), w.BrIf(0))
	alive := func(n int, code []byte) *w.Module {
		return misbehaves(w.Repeat(n, w.Seq(w.Get(0), w.Load(4))), code, w.Repeat(n-1, []byte{w.I32Add}))
	}
	thousand := w.Repeat(1000, []byte{w.I32})
	results := w.Func{Results: thousand, Body: w.Repeat(1000, w.Const(1))}
	effort, values := "too much work to compile", "too many locals, operands and results"
	list := []hostile{
		{name: "loops within loops with many locals", says: effort,
			module: many(1000, w.Repeat(300, []byte{3, w.Empty}), each(1000), w.Repeat(300, w.Seq(w.Get(0), w.BrIf(0), w.End)))},
		{name: "loops behind loops with many locals", says: effort, module: many(9000, each(9000), w.Repeat(400, turn))},
		{name: "branches with many locals", says: effort, module: many(9000, each(9000), w.Repeat(400, skip))},
		{name: "many values across branches", says: effort, module: alive(10000, w.Repeat(7000, skip))},
		{name: "many values across loops", says: effort, module: alive(10000, w.Repeat(2000, turn))},
		{name: "branches with a thousand values", says: values, module: with(misbehaves(
			0x02, 0, w.Repeat(1000, w.Const(1)), w.Repeat(2000, w.Seq(w.Get(0), w.BrIf(0))), w.End, w.Repeat(1000, []byte{w.Drop}),
			w.Const(0)), func(m *w.Module) { m.Types = []w.Func{{Results: thousand}} })},
		{name: "a table of branches with a thousand values", says: values, module: with(misbehaves(
			0x02, 0, w.Repeat(1000, w.Const(1)), w.Get(0), w.BrTable(make([]uint32, 2000)...), w.End, w.Repeat(1000, []byte{w.Drop}),
			w.Const(0)), func(m *w.Module) { m.Types = []w.Func{{Results: thousand}} })},
		{name: "calls with a thousand results", says: values, module: with(misbehaves(w.Repeat(5000, w.Call(self+1)), w.Unreachable),
			func(m *w.Module) { m.Funcs = append(m.Funcs, results) })},
		{name: "functions of a thousand parameters", says: effort, module: with(misbehaves(w.Const(0)), func(m *w.Module) {
			for range 90_000 {
				m.Funcs = append(m.Funcs, w.Func{Params: thousand})
			}
		})},
		{name: "operands that are not there", says: "an instruction has too few operands", module: misbehaves(w.Drop, w.Const(0))},
		{name: "operands too many", says: "2 operands at the end of a block, expected 1", module: misbehaves(w.Const(0), w.Const(0))},
	}
	for k := range list {
		list[k].kind = Refused
	}
	return list
}

// Imports and exports of invalid kinds are refused.
func TestImportsAndExportsOfTheWrongKind(t *testing.T) {
	header := "\x00asm\x01\x00\x00\x00"
	imports := func(kind string) []byte {
		return append([]byte(header), w.Section(2, w.List(w.Seq(w.Name("gpupipe"), w.Name("x"), []byte(kind))))...)
	}
	renamed := func(export string, change func(m *w.Module)) []byte {
		return with(replacedName(export, ""), change).Encode()
	}
	r := newRuntime(t, Config{})
	for want, bin := range map[string][]byte{
		"imports the table gpupipe.x, expected functions only":  imports("\x01\x70\x00\x01"),
		"imports the memory gpupipe.x, expected functions only": imports("\x02\x00\x01"),
		"imports the global gpupipe.x, expected functions only": imports("\x03\x7f\x00"),
		"exception handling is not supported":                   imports("\x04\x00\x00"),
		"memory64 is not supported":                             imports("\x02\x04\x01"),
		"threads are not supported":                             imports("\x02\x03\x01\x02"),
		"does not export the function gpupipe_alloc":            renamed(abi.Alloc, func(m *w.Module) { m.Globals[0].Export = abi.Alloc }),
		"does not export the function gpupipe_abi_v1": renamed(abi.Version,
			func(m *w.Module) { m.Tables = []w.Limits{{Min: 1, Export: abi.Version}} }),
		`exports no memory "memory"`: with(misbehaves(w.Const(0)), func(m *w.Module) {
			m.Memories[0].Export, m.Globals[0].Export = "", abi.Memory
		}).Encode(),
		"duplicates name \"h\"": with(misbehaves(w.Const(0)), func(m *w.Module) { m.Funcs = append(m.Funcs, voidHook) }).Encode(),
	} {
		_, err := r.Load("x.wasm", bin, Limits{})
		var e *Error
		require.ErrorAs(t, err, &e, want)
		assert.Equal(t, Refused, e.Kind)
		assert.ErrorContains(t, err, want)
	}
}

// A truncated module is refused. A module with a changed byte is refused, or it opens and runs, or fails with an error.
func TestDamagedModules(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) {
		whole := guestModule(double()).Encode()
		for n := range whole {
			_, err := r.Load("cut.wasm", whole[:n], Limits{})
			var e *Error
			require.ErrorAs(t, err, &e, "%d bytes", n)
			require.Equal(t, Refused, e.Kind)

			bin := append([]byte{}, whole...)
			bin[n] ^= 1 << (n % 8)
			m, err := r.Load("changed.wasm", bin, smallLimits)
			if err == nil {
				var i *Instance
				if i, err = m.Open(context.Background(), Options{}); err == nil && m.CheckHook("double") == nil {
					_, err = i.Call(context.Background(), "double", 0, Of(In, make([]float32, 9)), Of(Out, make([]float32, 9)))
					i.Close()
				}
				m.Close()
			}
			require.True(t, err == nil || assert.ErrorAs(t, err, &e), "byte %d", n)
		}
	})
}

// Unused content does no harm: unprintable names, endless sections, exports in every script.
func TestOddButHarmless(t *testing.T) {
	m := guestModule(double(), w.Func{Export: "\u202e\x00\U0001f600", Body: []byte{w.Unreachable}},
		w.Func{Export: strings.Repeat("long", 10_000)})
	m.Custom = map[string][]byte{"name": w.Seq(w.Section(1, w.List(w.Seq(8, w.Name("\x1b[2J\x07")))), 0xff, 0xff), "producers": {0xff},
		"": nil}
	bin := m.Encode()
	for range 10_000 {
		bin = append(bin, w.Section(0, w.Name("x"))...)
	}
	engines(t, func(t *testing.T, r *Runtime) {
		mod, err := r.Load("odd.wasm", bin, Limits{})
		require.NoError(t, err)
		i := open(t, mod, Options{})
		_, err = i.Call(context.Background(), "double", 0, Of(In, make([]float32, 9)), Of(Out, make([]float32, 9)))
		require.NoError(t, err)
	})
}
