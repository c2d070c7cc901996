package wasm

import (
	"math"
	"strings"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
)

func hostileCalls() []hostile {
	descriptor := func(word uint32, value int32) *w.Module {
		return misbehaves(w.Get(0), w.Const(value), w.Store(4*word), w.Const(0))
	}
	deep := func(code ...any) *w.Module { return misbehaves(code...) }
	grow := w.Loop(w.Empty, w.Const(1), w.MemoryGrow(), w.Const(-1), w.I32Eq, w.I32Eqz, w.BrIf(0))
	list := []hostile{
		{name: "endless loop", module: misbehaves(forever, w.Const(0)), kind: Budget, says: "took more than 3000000 units of work"},
		{name: "endless loop of branches backward by br_table", module: misbehaves(w.Loop(w.Empty, w.Const(7), w.BrTable(0, 0)),
			w.Const(0)), kind: Budget},
		{name: "endless tail calls", module: deep(w.Get(0), w.Get(1), w.ReturnCall(self)), kind: Budget},
		{name: "endless calls of empty functions",
			module: with(misbehaves(w.Loop(w.Empty, w.Repeat(100, w.Call(self+1)), w.Br(0)), w.Const(0)), func(m *w.Module) {
				m.Funcs = append(m.Funcs, w.Func{})
			}), kind: Budget},
		{name: "endless loop that logs", module: misbehaves(w.Loop(w.Empty, w.Const(0), w.Const(60000), w.Call(fnLog), w.Br(0)),
			w.Const(0)), kind: Budget},
		{name: "endless loop that sleeps", module: misbehaves(w.Loop(w.Empty, w.Const(0), w.Const(100), w.Const(1), w.Const(200),
			w.Call(fnPoll), w.Drop, w.Br(0)), w.Const(0)), kind: Budget},
		{name: "endless loop of random bytes", module: misbehaves(w.Loop(w.Empty, w.Const(0), w.Const(100000), w.Call(fnRandom), w.Drop,
			w.Br(0)), w.Const(0)), kind: Budget},
		{name: "endless loop that fills memory", module: misbehaves(w.Loop(w.Empty, w.Const(0), w.Const(1), w.Const(100000),
			w.MemoryFill(), w.Br(0)), w.Const(0)), kind: Budget},
		{name: "endless loop that copies memory", module: misbehaves(w.Loop(w.Empty, w.Const(0), w.Const(1), w.Const(100000),
			w.MemoryCopy(), w.Br(0)), w.Const(0)), kind: Budget},
		{name: "recursion", module: deep(w.Get(0), w.Get(1), w.Call(self)), kind: Stack, says: "made more than 1900 nested calls"},
		{name: "recursion with large frames", module: with(deep(w.Get(0), w.Get(1), w.Call(self)), func(m *w.Module) {
			m.Funcs[2].Locals = []byte(strings.Repeat("\x7b", 9000))
		}), kind: Stack, says: "nested calls"},
		{name: "recursion through a table", module: with(misbehaves(w.Get(0), w.Get(1), w.Const(0), w.CallIndirect(0)), func(m *w.Module) {
			m.Types = []w.Func{{Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}}}
			m.Tables, m.Elements = []w.Limits{{Min: 1}}, [][]byte{w.ActiveElements(0, self)}
		}), kind: Stack},
		{name: "unreachable", module: misbehaves(w.Unreachable), kind: Trap, says: "unreachable in"},
		{name: "division by zero", module: misbehaves(w.Const(1), w.Const(0), w.I32DivS), kind: Trap, says: "integer divide by zero"},
		{name: "division overflow", module: misbehaves(w.Const(math.MinInt32), w.Const(-1), w.I32DivS), kind: Trap,
			says: "integer overflow"},
		{name: "NaN to an integer", module: misbehaves(w.ConstF64(math.NaN()), w.I32TruncF64), kind: Trap,
			says: "invalid conversion to integer"},
		{name: "load outside the memory", module: misbehaves(w.Const(-1), w.Load(0)), kind: Trap, says: "out of bounds memory access"},
		{name: "load at an offset that overflows", module: misbehaves(w.Const(-1), w.Load(math.MaxUint32)), kind: Trap,
			says: "out of bounds memory access"},
		{name: "fill outside the memory", module: misbehaves(w.Const(0), w.Const(0), w.Const(-1), w.MemoryFill(), w.Const(0)),
			limits: Limits{MemoryPages: 64}, kind: Trap, says: "out of bounds memory access"},
		{name: "call of no function", module: with(misbehaves(w.Const(0), w.CallIndirect(0), w.Const(0)), func(m *w.Module) {
			m.Types, m.Tables = []w.Func{{}}, []w.Limits{{Min: 1}}
		}), kind: Trap, says: "invalid table access"},
		{name: "call of a function of another type", module: with(misbehaves(w.Const(0), w.CallIndirect(0), w.Const(0)), func(m *w.Module) {
			m.Types, m.Tables, m.Elements = []w.Func{{}}, []w.Limits{{Min: 1}}, [][]byte{w.ActiveElements(0, self)}
		}), kind: Trap, says: "indirect call type mismatch"},
		{name: "growth without end, then a trap", module: misbehaves(grow, w.Unreachable), kind: Memory,
			says: "asked for more than 64 pages of memory, then: unreachable"},
		{name: "growth without end, then a polite failure", module: misbehaves(grow, w.Const(-1)), kind: Memory, says: "then: returned -1"},
		{name: "growth without end, then nothing", module: misbehaves(grow, w.Const(0))},
		{name: "growth by four billion", module: misbehaves(w.Const(-1), w.MemoryGrow(), w.Drop, w.Unreachable), kind: Memory},
		{name: "table growth without end", module: with(misbehaves(w.Loop(w.Empty, w.RefNull(), w.Const(1000), w.TableGrow(), w.Const(-1),
			w.I32Eq, w.I32Eqz, w.BrIf(0)), w.Const(0)), func(m *w.Module) {
			m.Tables = []w.Limits{{Min: 1}}
		})},
		{name: "log outside the memory", module: misbehaves(w.Const(131072), w.Const(1), w.Call(fnLog), w.Const(0)), kind: Pointer,
			says: "log: found 1 bytes at 0x20000, but the memory ends at 0x20000"},
		{name: "log of a length that overflows", module: misbehaves(w.Const(16), w.Const(-8), w.Call(fnLog), w.Const(0)), kind: Pointer,
			says: "4294967288 bytes at 0x10"},
		{name: "fail outside the memory", module: misbehaves(w.Const(-8), w.Const(16), w.Call(fnFail), w.Const(0)), kind: Pointer,
			says: "16 bytes at 0xfffffff8"},
		{name: "fail with rubbish", module: with(misbehaves(w.Const(8), w.Const(9), w.Call(fnFail), w.Const(0)), func(m *w.Module) {
			m.Data = []w.Data{{Offset: w.Const(8), Bytes: []byte("\x1b[2J\xff\x00bad")}}
		}), kind: Failed, says: "failed: \ufffd[2J\ufffd\ufffdbad"},
		{name: "negative status", module: misbehaves(w.Const(-3)), kind: Failed, says: "returned -3"},
		{name: "exit", module: misbehaves(w.Const(0), w.Call(fnExit), w.Const(0)), kind: Exit, says: "called proc_exit with code 0"},
		{name: "write of four billion buffers", module: misbehaves(w.Const(1), w.Const(0), w.Const(-1), w.Const(0), w.Call(fnWrite),
			w.Const(28), w.I32Sub)},
		{name: "random bytes outside the memory", module: misbehaves(w.Const(16), w.Const(-1), w.Call(fnRandom), w.Const(21), w.I32Sub)},
		{name: "clock outside the memory", module: misbehaves(w.Const(0), w.ConstI64(0), w.Const(-4), w.Call(fnClock), w.Const(21),
			w.I32Sub)},
		{name: "sleep of four billion events", module: misbehaves(w.Const(0), w.Const(0), w.Const(-1), w.Const(0), w.Call(fnPoll),
			w.Const(28), w.I32Sub)},
		{name: "shape larger than its buffer", module: descriptor(3, 17), kind: Shape,
			says: "array 0: found the shape [17] after the call, expected at most the f32 elements of [16]"},
		{name: "shape of four billion", module: descriptor(3, -1), kind: Shape, says: "array 0"},
		{name: "shape whose product overflows", array: Of(InOut, make([]float32, 16), 2, 2, 2, 2), kind: Shape, says: "array 0",
			module: misbehaves(
				w.Get(0), w.Const(1<<16), w.Store(12), w.Get(0), w.Const(1<<16), w.Store(16), w.Get(0), w.Const(1<<16), w.Store(20),
				w.Get(0), w.Const(1<<16), w.Store(24), w.Const(0))},
		{name: "empty shape of four billion", array: Of(InOut, make([]float32, 16), 4, 4), kind: Shape, module: misbehaves(
			w.Get(0), w.Const(0), w.Store(12), w.Get(0), w.Const(-1), w.Store(16), w.Const(0))},
		{name: "another dtype", module: descriptor(0, 6), kind: Shape, says: "found dtype 6 after the call, expected 1"},
		{name: "other flags", module: descriptor(1, 2), kind: Shape, says: "found flags 2 after the call, expected 3"},
		{name: "another rank", module: descriptor(2, 4), kind: Shape, says: "found rank 4 after the call, expected 1"},
		{name: "another address", module: descriptor(7, 16), kind: Shape, says: "found address 0x10 after the call"},
		{name: "writes beyond its buffer", module: misbehaves(w.Get(0), w.Load(28), w.Const(1), w.Const(40000), w.MemoryFill(),
			w.Const(0))},
		{name: "overwrites all of its memory", module: misbehaves(w.Const(0), w.Const(255), w.MemorySize(), w.Const(65536), w.I32Mul,
			w.MemoryFill(), w.Const(0)), kind: Shape, says: "found dtype 4294967295"},
		{name: "NaN of every kind", module: misbehaves(
			w.Get(0), w.Load(28), w.Const(0x7fa00001), w.Store(0), w.Get(0), w.Load(28), w.Const(-1), w.Store(4),
			w.Get(0), w.Load(28), w.Get(0), w.Load(28), w.LoadF32(0), w.F32Sqrt, w.StoreF32(8), w.Const(0))},
		{name: "result of two billion", module: misbehaves(w.Const(math.MaxInt32))},
	}
	for k := range list {
		if list[k].kind != 0 {
			list[k].export = "h"
		}
	}
	return list
}
