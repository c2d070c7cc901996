package meter

import "fmt"

// code rewrites the code section.
func (m *module) code() []byte {
	if m.content[10] == nil {
		if len(m.functions) > m.imported {
			m.content[3].refuse("%d functions without a code section", len(m.functions)-m.imported)
		}
		return nil
	}
	var b []byte
	n := m.vector(10, "functions", maxFunctions, func(r *reader, i int) {
		f := m.imported + i
		if f >= len(m.functions) {
			r.refuse("more functions than the function section's %d", len(m.functions)-m.imported)
		}
		size := r.u32()
		where := fmt.Sprintf("code section, function %d", f)
		if size > maxBody {
			r.where = where
			r.refuse("found %d bytes, expected at most %d", size, maxBody)
		}
		body := m.body(r.sub(size, where), f)
		b = append(appendU32(b, uint32(len(body))), body...)
	})
	if n != len(m.functions)-m.imported {
		m.content[10].refuse("found %d functions, expected %d as in the function section", n, len(m.functions)-m.imported)
	}
	for _, body := range m.extra.code {
		b = append(appendU32(b, uint32(len(body))), body...)
	}
	return append(appendU32(nil, uint32(n+len(m.extra.code))), b...)
}

// body is one function while it is rewritten.
type body struct {
	*module
	*reader
	typ         uint32
	start       int       // of the instructions
	locals      int       // parameters and locals
	added       []byte    // types of locals behind them
	temporaries [4]uint32 // by purpose: 1 + the local
	calls       bool      // calls others, so that it needs room
	height      int       // of the stack, at most
	payings     []payment // in order
	out         []byte

	// Of the instruction that was read last: its label, function or type; how many labels; the type of its block.
	target  uint32
	targets int
	block   funcType
}

// payment is made before the instruction at a place.
type payment struct {
	at    int
	cost  int64
	check bool
}

func (m *module) body(r *reader, f int) []byte {
	b := &body{module: m, reader: r, typ: m.functions[f]}
	b.locals = len(m.types[b.typ].params)
	b.declarations()
	b.start = r.i
	b.survey()
	if b.Free {
		b.payings, b.calls = nil, false
	}
	r.i = b.start
	b.rewrite()
	return b.assembled()
}

// declarations reads the locals.
func (b *body) declarations() {
	for range b.count("groups of locals", maxLocals) {
		n := b.u32()
		if uint64(n)+uint64(b.locals) > maxLocals {
			b.refuse("more than %d parameters and locals", maxLocals)
		}
		b.locals += int(n)
		b.valType()
	}
}

// assembled is the body with its locals.
func (b *body) assembled() []byte {
	declared := &reader{b: b.b}
	groups := declared.u32()
	out := appendU32(nil, groups+uint32(len(b.added)))
	out = append(out, b.b[declared.i:b.start]...)
	for _, t := range b.added {
		out = append(out, 1, t)
	}
	return append(out, b.out...)
}

// immediate reads what follows an opcode. Indices that the rewriter adds something behind must have existed before.
func (b *body) immediate(op int, in instruction, depth int, labels *int) {
	switch in.imm {
	case none:
	case immBlock:
		b.block = b.blockType()
	case immLabel:
		b.target, b.targets = b.index("label", depth), 1
	case immLabels:
		n := b.count("labels", maxLabels)
		if *labels += n + 1; *labels > maxLabels {
			b.refuse("more than %d labels in all br_table", maxLabels)
		}
		for range n + 1 {
			b.target = b.index("label", depth)
		}
		b.targets = n + 1
	case immFunc:
		b.target = b.index("function", len(b.functions))
	case immIndirect:
		b.target = b.index("type", len(b.types))
		b.index("table", b.tables)
	case immLocal:
		b.index("local", b.locals)
	case immGlobal:
		b.index("global", b.globals)
	case immTable:
		b.index("table", b.tables)
	case immTables:
		b.index("table", b.tables)
		b.index("table", b.tables)
	case immElem:
		b.index("element segment", b.elements)
	case immElemTable:
		b.index("element segment", b.elements)
		b.index("table", b.tables)
	case immData, immDataMemory:
		if b.segments < 0 {
			b.refuse("opcode %#x needs a data count section", op)
		}
		b.index("data segment", b.segments)
		if in.imm == immDataMemory {
			b.memory()
		}
	case immMemory:
		b.memory()
	case immMemories:
		b.memory()
		b.memory()
	case immAddress, immAddressLane:
		if align := b.u32(); align >= 0x40 && align < 0x80 {
			b.refuse("several memories are not supported (alignment %#x)", align)
		}
		b.u32()
		if in.imm == immAddressLane {
			b.byte()
		}
	case immLane:
		b.byte()
	case immI32:
		b.signed(32)
	case immI64:
		b.signed(64)
	case imm4:
		b.take(4)
	case imm8:
		b.take(8)
	case imm16:
		b.take(16)
	case immTypes:
		if n := b.count("result types of select", maxParams); n != 1 {
			b.refuse("select with %d result types, expected 1", n)
		}
		b.valType()
	case immRef:
		b.refType()
	default:
		panic(fmt.Sprintf("opcode %#x has no immediates", op))
	}
}

func (b *body) memory() {
	if i := b.byte(); i != 0 {
		b.refuse("several memories are not supported (memory %d)", i)
	}
}

func (b *body) blockType() funcType {
	if b.more() && b.b[b.i]&0xc0 == 0x40 { // one negative byte
		if b.b[b.i] == 0x40 {
			b.i++
			return funcType{}
		}
		return funcType{results: []byte{b.valType()}}
	}
	t := b.signed(33)
	if t < 0 || t >= int64(len(b.types)) {
		b.refuse("block type %d does not exist, there are %d", t, len(b.types))
	}
	return b.types[t]
}
