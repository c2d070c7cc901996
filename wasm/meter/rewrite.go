package meter

// rewrite is the second walk: it copies the instructions, shifts functions' indices, and adds the payments.
func (b *body) rewrite() {
	b.enterRoom()
	depth, skip := 1, new(int)
	for depth > 0 {
		b.pay()
		at := b.i
		op, in := b.opcode()
		switch op {
		case opCall, opReturnCall, opRefFunc:
			f := b.u32()
			if op == opReturnCall {
				b.leaveRoom()
			}
			b.out = appendU32(append(b.out, byte(op)), b.shift(f))
			continue
		case opReturn:
			if b.calls { // to the block that gives back the room
				b.out = appendU32(append(b.out, opBr), uint32(depth-1))
				continue
			}
		case opReturnCallIndirect:
			b.leaveRoom()
		case opBlock, opLoop, opIf:
			depth++
		case opEnd:
			depth--
		case opMemoryCopy, opMemoryFill:
			b.immediate(op, in, depth, skip)
			b.inPieces(op, b.b[at:b.i])
			continue
		case opMemoryInit:
			b.payFor(3)
		case opTableCopy, opTableFill, opTableInit:
			b.payFor(0)
		case opMemoryGrow, opTableGrow:
			b.immediate(op, in, depth, skip)
			b.grow(op, b.b[at:b.i])
			continue
		}
		if *skip = 0; op != opEnd {
			b.immediate(op, in, depth, skip)
		}
		b.out = append(b.out, b.b[at:b.i]...)
	}
	if b.calls {
		b.leaveRoom()
		b.out = append(b.out, opEnd)
	}
}

// temporary gives the function's local for a purpose of ours, made on its first use.
func (b *body) temporary(purpose int) uint32 {
	if b.temporaries[purpose] == 0 {
		b.added = append(b.added, temporaryTypes[purpose])
		b.temporaries[purpose] = uint32(b.locals + len(b.added))
	}
	return b.temporaries[purpose] - 1
}

// Purposes of locals that are added.
const (
	tmpFuel = iota
	tmpRoom
	tmpCount
	tmpGrown
)

var temporaryTypes = [...]byte{tmpFuel: 0x7e, tmpRoom: 0x7f, tmpCount: 0x7f, tmpGrown: 0x7f}

// add appends an instruction with an index.
func (b *body) add(op byte, index uint32) { b.out = appendU32(append(b.out, op), index) }

// tick appends a call of the host if the condition on the stack holds.
func (b *body) tick(reason byte) {
	b.out = append(b.out, opIf, 0x40, opI32Const, reason)
	b.add(opCall, uint32(b.imported))
	b.out = append(b.out, opEnd)
}

// pay appends the payment for the code that begins here.
func (b *body) pay() {
	if len(b.payings) == 0 || b.payings[0].at != b.i {
		return
	}
	p := b.payings[0]
	b.payings = b.payings[1:]
	b.add(opGlobalGet, b.fuelGlobal())
	b.out = append(appendS64(append(b.out, opI64Const), p.cost), opI64Sub)
	b.settle(p.check)
}

// settle stores the counter that is on the stack, and looks whether it is used up.
func (b *body) settle(check bool) {
	if !check {
		b.add(opGlobalSet, b.fuelGlobal())
		return
	}
	b.spent()
	b.tick(OutOfFuel)
}

// spent stores the counter that is on the stack, and leaves there whether it is used up.
func (b *body) spent() {
	b.add(opLocalTee, b.temporary(tmpFuel))
	b.add(opGlobalSet, b.fuelGlobal())
	b.add(opLocalGet, b.temporary(tmpFuel))
	b.out = append(b.out, opI64Const, 0, opI64LtS)
}

// payFor pays for as many entries as the top of the stack says, 2^shift for a unit.
func (b *body) payFor(shift byte) {
	if b.Free {
		return
	}
	b.add(opLocalTee, b.temporary(tmpCount))
	b.charge(opI64ShrU, shift)
	b.settle(true)
}

// charge leaves on the stack what remains of the counter when the entries counted in tmpCount are paid for.
func (b *body) charge(op, shift byte) {
	b.add(opGlobalGet, b.fuelGlobal())
	b.add(opLocalGet, b.temporary(tmpCount))
	b.out = append(b.out, opI64ExtendI32U, opI64Const, shift, op, opI64Sub)
}

// inPieces appends memory.copy or memory.fill. The part that the counter does not cover is done by a function of ours
// that visits the host between pieces.
func (b *body) inPieces(op int, text []byte) {
	if b.Free {
		b.out = append(b.out, text...)
		return
	}
	b.add(opLocalTee, b.temporary(tmpCount))
	b.charge(opI64ShrU, 3)
	b.spent()
	b.out = append(b.out, opIf)
	b.out = appendS64(b.out, int64(b.extra.piecesType()))
	b.add(opCall, b.pieces(op))
	b.out = append(append(append(b.out, opElse), text...), opEnd)
}

// grow appends memory.grow or table.grow, paid for if it succeeds.
func (b *body) grow(op int, text []byte) {
	if b.Free {
		b.out = append(b.out, text...)
		return
	}
	b.add(opLocalTee, b.temporary(tmpCount))
	b.out = append(b.out, text...)
	b.add(opLocalTee, b.temporary(tmpGrown))
	b.out = append(b.out, opI32Const, 0x7f, opI32Eq) // -1
	b.tick(GrowthRefused)
	b.out[len(b.out)-1] = opElse
	shift := byte(0)
	if op == opMemoryGrow {
		shift = 13 // 64 KiB at 8 bytes a unit
	}
	b.charge(opI64ShL, shift)
	b.settle(true)
	b.out = append(b.out, opEnd)
	b.add(opLocalGet, b.temporary(tmpGrown))
}

// weight is the room that a call of the function takes.
func (b *body) weight() int64 { return int64(1 + (b.locals+b.height)/32) }

func (b *body) enterRoom() {
	if !b.calls {
		return
	}
	b.add(opGlobalGet, b.roomGlobal())
	b.out = append(appendS64(append(b.out, opI32Const), b.weight()), opI32Sub)
	b.add(opLocalTee, b.temporary(tmpRoom))
	b.add(opGlobalSet, b.roomGlobal())
	b.add(opLocalGet, b.temporary(tmpRoom))
	b.out = append(b.out, opI32Const, 0, opI32LtS)
	b.tick(OutOfRoom)
	b.out = b.resultBlock(append(b.out, opBlock), b.typ)
}

func (b *body) leaveRoom() {
	if !b.calls {
		return
	}
	b.add(opGlobalGet, b.roomGlobal())
	b.out = append(appendS64(append(b.out, opI32Const), b.weight()), opI32Add)
	b.add(opGlobalSet, b.roomGlobal())
}
