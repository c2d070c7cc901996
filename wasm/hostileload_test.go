package wasm

import (
	"slices"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

func refusedModules() []hostile {
	imports := func(module, name string, params, results w.Types) *w.Module {
		return with(misbehaves(w.Const(0)), func(m *w.Module) {
			m.Imports = append(m.Imports, w.Import{Module: module, Name: name, Params: params, Results: results})
		})
	}
	body := func(code ...any) *w.Module {
		return with(misbehaves(w.Const(0)), func(m *w.Module) { m.Funcs = append(m.Funcs, w.Func{Body: w.Seq(code...)}) })
	}
	i, v := w.Types{w.I32}, w.Types{}
	list := []hostile{
		{name: "import of an unknown module", module: imports("env", "abort", v, v),
			says: "imports env.abort, expected a function of gpupipe or wasi_snapshot_preview1"},
		{name: "import of an unknown name", module: imports("gpupipe", "exec", v, v),
			says: "imports gpupipe.exec, expected one of config_key, fail, log"},
		{name: "import of another type", module: imports("gpupipe", "log", i, i),
			says: "imports gpupipe.log as (i32) → (i32), expected (i32, i32) → ()"},
		{name: "import of the meter", module: imports("gpupipe", "tick", i, v), says: "imports gpupipe.tick, which is the host's own"},
		{name: "import of a socket of another type", module: imports(wasiModule, "sock_send", i, i),
			says: "expected (i32, i32, i32, i32, i32) → (i32)"},
		{name: "export of the meter's counter", module: with(misbehaves(w.Const(0)),
			func(m *w.Module) { m.Globals[0].Export = "gpupipe.fuel" }), says: `exports "gpupipe.fuel"`},
		{name: "forged index of the counter", module: body(w.ConstI64(1<<40), w.GSet(1)), says: "global 1 does not exist, there are 1"},
		{name: "forged index of an added local", module: body(w.Get(0), w.Drop), says: "local 0 does not exist, there are 0"},
		{name: "forged label of an added block", module: body(w.Const(0), w.Const(0), w.Call(fnLog), w.Br(1)),
			says: "label 1 does not exist, there are 1"},
		{name: "forged type of an added function", module: body(w.Block(40, w.Nop)), says: "block type 40 does not exist"},
		{name: "elements outside the table", module: with(misbehaves(w.Const(0)), func(m *w.Module) {
			m.Tables, m.Elements = []w.Limits{{Min: 1}}, [][]byte{w.ActiveElements(5, 0)}
		}), says: "1 elements at 5 of a table of 1"},
		{name: "no memory", module: with(misbehaves(w.Const(0)), func(m *w.Module) { m.Memories[0].Export = "" }),
			says: `exports no memory "memory"`},
		{name: "allocator missing", module: replacedName(abi.Alloc, ""),
			says: "does not export the function gpupipe_alloc (i32) → (i32); it exports gpupipe_abi_v1, h"},
		{name: "version missing", module: replacedName(abi.Version, "gpupipe_abi_v2"),
			says: "does not export the function gpupipe_abi_v1 () → (i32)"},
		{name: "allocator of another type", module: replaced(w.Func{Export: abi.Alloc, Params: w.Types{w.I64}, Results: i,
			Body: w.Const(16)}), says: "exports gpupipe_alloc as (i64) → (i32), expected (i32) → (i32)"},
		{name: "save without load", module: replaced(w.Func{Export: abi.Save, Params: w.Types{w.I32, w.I32}, Results: i,
			Body: w.Const(0)}), says: "expected both or neither"},
		{name: "memory of 4 GiB", module: with(misbehaves(w.Const(0)), func(m *w.Module) { m.Memories[0].Min = 65536 }),
			says: "found a memory of at least 65536 pages, expected at most 64"},
		{name: "table of 4 billion", module: with(misbehaves(w.Const(0)), func(m *w.Module) { m.Tables = []w.Limits{{Min: 1<<32 - 1}} }),
			says: "expected at most 65536"},
		{name: "17 tables", module: with(misbehaves(w.Const(0)), func(m *w.Module) { m.Tables = make([]w.Limits, 17) }),
			says: "found 17 tables, expected at most 16"},
		{name: "two memories", module: with(misbehaves(w.Const(0)), func(m *w.Module) { m.Memories = make([]w.Limits, 2) }),
			says: "found 2 memories, expected at most 1"},
		{name: "br_table of a million", module: body(w.Const(0), w.BrTable(make([]uint32, 1_000_000)...)), says: "labels"},
		{name: "blocks within blocks without end", module: body(w.Repeat(100_000, []byte{2, w.Empty}), w.Repeat(100_000, []byte{w.End})),
			says: "more than 8000 blocks and branches"},
		{name: "four billion locals", module: replaced(w.Func{Export: "x", Declared: w.Seq(1, w.U32(1<<32-1), w.I32)}),
			says: "more than 10000 parameters and locals"},
		{name: "a function of 2 MB", module: body(w.Repeat(1<<21, []byte{w.Nop})), says: "expected at most 1048576"},
		{name: "200,000 functions", module: with(misbehaves(w.Const(0)),
			func(m *w.Module) { m.Funcs = append(m.Funcs, make([]w.Func, 200_000)...) }), says: "expected at most 100000"},
		{name: "a million exports", module: with(misbehaves(w.Const(0)), func(m *w.Module) {
			m.Exports = slices.Repeat([][]byte{w.Export("x", 0, 0)}, 1_000_000)
		}), says: "expected at most 20000"},
		{name: "overlong number", module: body([]byte{0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00}), says: "more than 5 bytes"},
		{name: "number of 33 bits", module: body([]byte{0x10, 0x80, 0x80, 0x80, 0x80, 0x10}), says: "32 bits"},
		{name: "code that does not end", module: body([]byte{2, w.Empty}), says: "ends in the middle"},
		{name: "code behind its end", module: body(w.End, w.Nop), says: "bytes after its entries"},
		{name: "wrong operand types", module: body(w.ConstF32(1), w.I32Eqz, w.Drop), says: "invalid function"},
		{name: "threads", module: body(w.Const(0), []byte{0xfe, 0x10, 2, 0}), says: "threads is not supported"},
		{name: "exceptions", module: body([]byte{0x06, w.Empty}), says: "exception handling is not supported"},
		{name: "garbage collection", module: body([]byte{0xfb, 0x00, 0x00}), says: "garbage collection is not supported"},
		{name: "relaxed SIMD", module: body([]byte{0xfd, 0x80, 0x02}), says: "relaxed SIMD is not supported"},
	}
	for k := range list {
		list[k].kind = Refused
	}
	return list
}

// replacedName is a well-behaved module in which an export has another name.
func replacedName(from, to string) *w.Module {
	return with(misbehaves(w.Const(0)), func(m *w.Module) {
		for i := range m.Funcs {
			if m.Funcs[i].Export == from {
				m.Funcs[i].Export = to
			}
		}
	})
}

func unopened() []hostile {
	start := func(body []byte) *w.Module {
		return with(misbehaves(w.Const(0)), func(m *w.Module) {
			m.Funcs = append(m.Funcs, w.Func{Body: body})
			f := uint32(imported + len(m.Funcs) - 1)
			m.Start = &f
		})
	}
	in := func(name string, code ...any) *w.Module {
		f := w.Func{Export: name, Body: w.Seq(code...)}
		if name == abi.Open {
			f.Params, f.Results = w.Types{w.I32, w.I32, w.I64}, w.Types{w.I32}
		}
		return replaced(f)
	}
	alloc := func(code ...any) *w.Module {
		return with(replaced(w.Func{Export: abi.Alloc, Params: w.Types{w.I32}, Results: w.Types{w.I32}, Body: w.Seq(code...)}),
			func(m *w.Module) {
				m.Funcs = append(m.Funcs, w.Func{Export: abi.Open, Params: w.Types{w.I32, w.I32, w.I64}, Results: w.Types{w.I32},
					Body: w.Const(0)})
			})
	}
	return []hostile{
		{name: "endless loop in the start function", module: start(forever), export: startFunction, kind: Budget,
			says: "more than 3000000 units"},
		{name: "trap in the start function", module: start([]byte{w.Unreachable}), export: startFunction, kind: Trap, says: "unreachable"},
		{name: "exit in the start function", module: start(w.Seq(w.Const(3), w.Call(fnExit))), export: startFunction, kind: Exit,
			says: "code 3"},
		{name: "wild pointer in the start function", module: start(w.Seq(w.Const(-1), w.Const(-1), w.Call(fnLog))), export: startFunction,
			kind: Pointer, says: "4294967295 bytes at 0xffffffff"},
		{name: "data outside the memory", module: with(misbehaves(w.Const(0)), func(m *w.Module) {
			m.Data = []w.Data{{Offset: w.Const(-1), Bytes: []byte("x")}}
		}), export: startFunction, kind: Trap, says: "out of bounds memory access"},
		{name: "endless loop in _initialize", module: in(abi.Init, forever), export: startFunction, kind: Budget, says: "units of work"},
		{name: "endless loop in open", module: in(abi.Open, forever, w.Const(0)), export: startFunction, kind: Budget,
			says: "units of work"},
		{name: "open returns an error", module: in(abi.Open, w.Const(-5)), export: startFunction, kind: Failed, says: "returned -5"},
		{name: "open calls fail", module: in(abi.Open, w.Const(0), w.Const(0), w.Call(fnFail), w.Const(0)), export: startFunction,
			kind: Failed, says: "called fail"},
		{name: "version of the future", module: replaced(version(1)), export: startFunction, kind: Refused,
			says: "needs version 1.1 of the ABI, expected at most 1.0"},
		{name: "negative version", module: replaced(version(-1)), export: startFunction, kind: Refused, says: "needs version 1.-1"},
		{name: "allocator returns null", module: alloc(w.Const(0)), export: startFunction, kind: Memory,
			says: "gpupipe_alloc(16) returned 0: no memory is left"},
		{name: "allocator returns an odd address", module: alloc(w.Const(17)), export: startFunction, kind: Pointer,
			says: "0x11, expected a multiple of 16"},
		{name: "allocator returns the memory's end", module: alloc(w.Const(2 * 65536)), export: startFunction, kind: Pointer,
			says: "the memory ends at 0x20000"},
		{name: "allocator returns an address that overflows", module: alloc(w.Const(-16)), export: startFunction, kind: Pointer,
			says: "0xfffffff0"},
		{name: "allocator loops", module: alloc(forever, w.Const(16)), export: startFunction, kind: Budget, says: "units"},
	}
}
