package meter

import w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"

// generator writes a valid module that ends, out of bytes that decide everything: each loop counts down a local of its
// own, and functions call only those behind them.
type generator struct {
	choices []byte
	funcs   []w.Func
	self    int    // function being written
	labels  []byte // result types of open blocks: w.Empty or i32
	loops   int    // loops around
	size    int    // of what may still be written
}

const (
	numFuncs     = 3 // functions 1 to 3; 0 is imported
	fnTwo        = numFuncs + 1
	fnTail       = numFuncs + 2
	fnStart      = numFuncs + 3
	fnLeaf       = numFuncs + 4
	firstCounter = 4 // local
	maxLoops     = 2
)

func (g *generator) pick(n int) int {
	if len(g.choices) == 0 {
		return 0
	}
	c := g.choices[0]
	g.choices = g.choices[1:]
	return int(c) % n
}

// program is a module that exports "run" (i32, i32) → i32, "mem" and "global".
func program(choices []byte) *w.Module {
	g := &generator{choices: choices, funcs: make([]w.Func, numFuncs)}
	pair, two := w.Types{w.I32, w.I32}, w.Types{w.I32, w.I64}
	for g.self = numFuncs; g.self > 0; g.self-- {
		g.size, g.loops, g.labels = 100, 0, []byte{w.I32}
		g.funcs[g.self-1] = w.Func{Params: pair, Results: w.Types{w.I32}, Locals: w.Types{w.I32, w.I64, w.I32, w.I32},
			Body: w.Seq(g.statements(), g.i32())}
	}
	g.funcs[0].Export = "run"
	start := uint32(fnStart)
	return &w.Module{
		Imports: []w.Import{{Module: "env", Name: "seen", Params: w.Types{w.I32}}},
		Funcs: append(g.funcs,
			w.Func{Params: w.Types{w.I32}, Results: two, Body: w.Seq(w.Get(0), w.If(w.Empty, w.Get(0), w.ConstI64(7), w.Return),
				w.Const(1), w.Const(2), w.Call(fnLeaf), w.Get(0), w.I64ExtendU)},
			w.Func{Params: w.Types{w.I32}, Results: two, Body: w.Seq(w.Get(0), w.Call(0), w.Get(0), w.ReturnCall(fnTwo))},
			w.Func{Body: w.Seq(w.Const(40), w.Const(41), w.Store(0))},
			w.Func{Params: pair, Results: w.Types{w.I32}, Body: w.Seq(w.Get(0), w.Get(1), w.I32Xor)}),
		Tables:   []w.Limits{{Min: 8, Max: 20}},
		Memories: []w.Limits{{Min: 1, Max: 3, Export: "mem"}},
		Globals:  []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(5), Export: "global"}, {Type: w.FuncRef, Init: w.RefFunc(2)}},
		Start:    &start,
		Elements: [][]byte{ // each kind there is
			w.ActiveElements(0, 1, 2, 3),
			w.Seq(1, 0, 1, 3),                                   // passive
			w.Seq(2, 0, w.Const(4), w.End, 0, 1, 2),             // active, its table named
			w.Seq(3, 0, 1, fnLeaf),                              // declared
			w.Seq(4, w.Const(5), w.End, 1, w.RefFunc(3), w.End), // active, of expressions
			w.Seq(5, w.FuncRef, 2, w.RefFunc(2), w.End, w.RefNull(), w.End),
			w.Seq(6, 0, w.Const(6), w.End, w.FuncRef, 1, w.RefFunc(1), w.End),
			w.Seq(7, w.FuncRef, 1, w.RefFunc(fnTwo), w.End),
		},
		Data:      []w.Data{{Offset: w.Const(100), Bytes: []byte("some data")}, {Passive: true, Bytes: []byte("passive data")}},
		DataCount: true,
	}
}

func (g *generator) statements() []byte {
	var b []byte
	for n := 1 + g.pick(4); n > 0 && g.size > 0; n-- {
		b = append(b, g.statement()...)
	}
	return b
}

// in writes code within a block.
func (g *generator) in(label byte, code func() []byte) []byte {
	g.labels = append(g.labels, label)
	b := code()
	g.labels = g.labels[:len(g.labels)-1]
	return b
}

func (g *generator) statement() []byte {
	g.size--
	switch g.pick(18) {
	case 0, 1:
		return w.Seq(g.i32(), w.Set(uint32(g.pick(3))))
	case 2:
		return w.Seq(g.i32(), w.GSet(0))
	case 3:
		return w.Seq(g.i32(), w.Const(0xfff), w.I32And, g.i32(), w.Store(uint32(g.pick(200))))
	case 4:
		return w.Seq(g.i32(), w.Call(0))
	case 5:
		return w.Seq(g.i32(), w.If(w.Empty, g.in(w.Empty, g.statements), w.Else, g.in(w.Empty, g.statements)))
	case 6:
		return w.Block(w.Empty, g.in(w.Empty, g.statements))
	case 7, 8, 9:
		return g.loop()
	case 10:
		return g.branch()
	case 11:
		return w.Seq(g.i32(), w.Const(0xfff), w.I32And, g.i32(), g.i32(), w.Const(0xff), w.I32And, w.MemoryFill())
	case 12:
		return w.Seq(g.i32(), w.Const(0xfff), w.I32And, g.i32(), w.Const(0xfff), w.I32And, g.i32(), w.Const(0xff), w.I32And, w.MemoryCopy())
	case 13:
		return w.Seq(g.i32(), w.Const(0xfff), w.I32And, w.Const(int32(g.pick(4))), w.Const(int32(g.pick(8))), w.MemoryInit(1))
	case 14:
		return w.Seq(w.Const(int32(g.pick(8))), w.RefFunc(uint32(1+g.pick(numFuncs))), w.Const(int32(g.pick(3))), w.TableFill())
	case 15: // several results
		return w.Seq(g.i32(), w.Call(uint32(fnTwo+g.pick(2))), w.I32WrapI64, w.I32Add, w.Set(2))
	case 16:
		return w.Seq(g.i32(), w.I64ExtendU, w.Get(3), w.I64Mul, w.ConstI64(int64(g.pick(100))), w.I64Add, w.Set(3))
	default:
		return w.Seq(w.Nop, g.i32(), w.Drop)
	}
}

// loop runs a few times.
func (g *generator) loop() []byte {
	if g.loops == maxLoops {
		return w.Seq(w.Nop)
	}
	counter := uint32(firstCounter + g.loops)
	g.loops++
	body := w.Loop(w.Empty,
		g.in(w.Empty, g.statements),
		w.Get(counter), w.Const(1), w.I32Sub, w.Tee(counter), w.Const(0), 0x4a /* i32.gt_s */, w.BrIf(0))
	g.loops--
	return w.Seq(w.Const(int32(1+g.pick(4))), w.Set(counter), body)
}

// branch leaves blocks forward, within a loop only to the function's end: a loop's label leads back.
func (g *generator) branch() []byte {
	to := len(g.labels) - 1
	if g.loops == 0 {
		to = g.pick(len(g.labels))
	}
	switch g.pick(4) {
	case 0:
		return w.Seq(g.i32(), w.If(w.Empty, g.in(w.Empty, func() []byte { return w.Seq(g.i32(), w.Return) })))
	case 1:
		if g.labels[len(g.labels)-1-to] == w.I32 {
			return w.Seq(g.i32(), g.i32(), w.BrIf(uint32(to)), w.Drop)
		}
		return w.Seq(g.i32(), w.BrIf(uint32(to)))
	case 2:
		return w.Block(w.Empty, w.Block(w.Empty, w.Block(w.Empty, g.i32(), w.BrTable(0, 1, 2, 1)), g.i32(), w.Set(0)), g.i32(), w.Set(1))
	default:
		return w.Seq(g.i32(), w.If(w.Empty, g.i32(), w.Get(0), w.ReturnCall(g.callee())))
	}
}

// callee is a function behind this one.
func (g *generator) callee() uint32 {
	if behind := numFuncs - g.self; behind > 0 && g.loops < maxLoops {
		return uint32(g.self + 1 + g.pick(behind))
	}
	return fnLeaf
}

func (g *generator) i32() []byte {
	g.size--
	if g.size <= 0 {
		return w.Get(uint32(g.pick(3)))
	}
	switch g.pick(14) {
	case 0:
		return w.Const(int32(g.pick(256)) - 100)
	case 1:
		return w.GGet(0)
	case 2:
		return w.Seq(g.i32(), w.Const(0xfff), w.I32And, w.Load(uint32(g.pick(200))))
	case 3, 4, 5:
		ops := []byte{w.I32Add, w.I32Sub, w.I32Mul, w.I32And, w.I32Xor, w.I32Eq, w.I32ShrU, w.I32RemU, w.I32DivS}
		return w.Seq(g.i32(), g.i32(), ops[g.pick(len(ops))])
	case 6:
		return w.Seq(g.i32(), g.i32(), w.Call(g.callee()))
	case 7:
		return w.Seq(g.i32(), w.If(w.I32, g.in(w.I32, g.i32), w.Else, g.in(w.I32, g.i32)))
	case 8:
		return w.Seq(g.i32(), g.i32(), g.i32(), w.Select)
	case 9:
		return w.Seq(w.Const(int32(g.pick(3)-1)), w.MemoryGrow())
	case 10:
		return w.Seq(w.RefNull(), w.Const(int32(g.pick(9))), w.TableGrow())
	case 11: // a vector: splat, add, a lane of it
		return w.Seq(g.i32(), []byte{0xfd, 0x11}, g.i32(), []byte{0xfd, 0x11}, []byte{0xfd, 0xae, 0x01},
			[]byte{0xfd, 0x1b, byte(g.pick(4))})
	case 12:
		return w.Seq(w.Get(3), w.I32WrapI64)
	default:
		return w.Get(uint32(g.pick(3)))
	}
}
