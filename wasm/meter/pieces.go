package meter

// piecesType is the type of memory.copy and memory.fill as functions: three i32, nothing.
func (a *additions) piecesType() uint32 {
	if a.threeInts == 0 {
		a.threeInts = a.addType(0x60, 3, 0x7f, 0x7f, 0x7f, 0)
	}
	return a.threeInts
}

// pieces returns the function that does memory.copy or memory.fill piece by piece, made on its first use.
func (m *module) pieces(op int) uint32 {
	f, made := m.extra.pieces[op]
	if !made {
		f = uint32(len(m.functions) + 1 + len(m.extra.code))
		m.extra.pieces[op] = f
		m.extra.code = append(m.extra.code, m.piecesBody(op))
	}
	return f
}

// piecesBody is the body of a function (to, from or value, n). What does not fit in the memory is left to the
// instruction itself, which traps before it has done anything.
func (m *module) piecesBody(op int) []byte {
	const to, from, n, part = 0, 1, 2, 3
	b := &body{module: m, out: []byte{1, 1, 0x7f}} // a local for part
	b.out = append(b.out, opBlock, 0x40)
	b.beyond(to, n)
	if op == opMemoryCopy {
		b.beyond(from, n)
		b.out = append(b.out, opI32Or)
	}
	b.out = append(b.out, opI32Eqz, opBrIf, 0)
	b.bulk(op, n)
	b.out = append(b.out, opEnd)
	if op == opMemoryCopy { // from its end, if its start would be overwritten
		b.get(from, to)
		b.out = append(b.out, opI32LtU, opIf, 0x40)
		b.eachPiece(n, part, func() {
			b.get(n, part)
			b.out = append(b.out, opI32Sub)
			b.add(opLocalSet, n)
			b.get(to, n)
			b.out = append(b.out, opI32Add)
			b.get(from, n)
			b.out = append(b.out, opI32Add)
			b.get(part)
			b.out = append(b.out, 0xfc, byte(opMemoryCopy&0xff), 0, 0)
		})
		b.out = append(b.out, opElse)
	}
	b.eachPiece(n, part, func() {
		b.bulk(op, part)
		b.advance(to, opI32Add, part)
		if op == opMemoryCopy {
			b.advance(from, opI32Add, part)
		}
		b.advance(n, opI32Sub, part)
	})
	if op == opMemoryCopy {
		b.out = append(b.out, opEnd)
	}
	return append(b.out, opEnd)
}

// get puts locals on the stack.
func (b *body) get(locals ...uint32) {
	for _, l := range locals {
		b.add(opLocalGet, l)
	}
}

// advance adds a local to another, or takes it away.
func (b *body) advance(local uint32, op byte, by uint32) {
	b.get(local, by)
	b.out = append(b.out, op)
	b.add(opLocalSet, local)
}

// beyond leaves on the stack whether n bytes at an address reach beyond the memory.
func (b *body) beyond(address, n uint32) {
	b.get(address)
	b.out = append(b.out, opI64ExtendI32U)
	b.get(n)
	b.out = append(b.out, opI64ExtendI32U, opI64Add, opMemorySize, 0, opI64ExtendI32U, opI64Const, 16, opI64ShL, opI64GtU)
}

// bulk appends the instruction itself on the first two parameters.
func (b *body) bulk(op int, n uint32) {
	b.get(0, 1, n)
	b.out = append(b.out, 0xfc, byte(op&0xff), 0)
	if op == opMemoryCopy {
		b.out = append(b.out, 0)
	}
}

// eachPiece appends a loop that visits the host and does a part of the work that is left, as long as there is any.
func (b *body) eachPiece(n, part uint32, do func()) {
	b.out = append(b.out, opLoop, 0x40, opI32Const, OutOfFuel)
	b.add(opCall, uint32(b.imported))
	b.out = appendS64(append(b.out, opI32Const), int64(b.piece))
	b.get(n, n)
	b.out = appendS64(append(b.out, opI32Const), int64(b.piece))
	b.out = append(b.out, opI32GtU, opSelect)
	b.add(opLocalSet, part)
	do()
	b.get(n)
	b.out = append(b.out, opBrIf, 0, opEnd)
}
