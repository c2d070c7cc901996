package meter

import "fmt"

// immediate is what follows an opcode.
type immediate byte

const (
	unknown immediate = iota
	none
	immBlock       // block type
	immLabel       // label
	immLabels      // br_table
	immFunc        // function
	immIndirect    // type, table
	immLocal       // local
	immGlobal      // global
	immTable       // table
	immTables      // table, table
	immElem        // element segment
	immElemTable   // element segment, table
	immData        // data segment
	immMemory      // 0
	immMemories    // 0, 0
	immDataMemory  // data segment, 0
	immAddress     // alignment, offset
	immAddressLane // alignment, offset, lane
	immLane        // byte
	immI32
	immI64
	imm4
	imm8
	imm16
	immTypes // select's result types
	immRef   // reference type
)

// Opcodes that the rewriter treats on their own. An opcode with a prefix is 256 * prefix + opcode.
const (
	opUnreachable        = 0x00
	opBlock              = 0x02
	opLoop               = 0x03
	opIf                 = 0x04
	opElse               = 0x05
	opEnd                = 0x0b
	opBr                 = 0x0c
	opBrIf               = 0x0d
	opBrTable            = 0x0e
	opReturn             = 0x0f
	opCall               = 0x10
	opCallIndirect       = 0x11
	opReturnCall         = 0x12
	opReturnCallIndirect = 0x13
	opSelect             = 0x1b
	opLocalGet           = 0x20
	opLocalSet           = 0x21
	opLocalTee           = 0x22
	opGlobalGet          = 0x23
	opGlobalSet          = 0x24
	opMemorySize         = 0x3f
	opMemoryGrow         = 0x40
	opI32Const           = 0x41
	opI64Const           = 0x42
	opI32Eqz             = 0x45
	opI32Eq              = 0x46
	opI32LtS             = 0x48
	opI32LtU             = 0x49
	opI32GtU             = 0x4b
	opI64LtS             = 0x53
	opI64GtU             = 0x56
	opI32Add             = 0x6a
	opI32Sub             = 0x6b
	opI32Or              = 0x72
	opI64Add             = 0x7c
	opI64Sub             = 0x7d
	opI64ShrU            = 0x88
	opI64ShL             = 0x86
	opI64ExtendI32U      = 0xad
	opRefNull            = 0xd0
	opRefFunc            = 0xd2
	opMemoryInit         = 0xfc08
	opMemoryCopy         = 0xfc0a
	opMemoryFill         = 0xfc0b
	opTableInit          = 0xfc0c
	opTableCopy          = 0xfc0e
	opTableGrow          = 0xfc0f
	opTableFill          = 0xfc11
	opV128Const          = 0xfd0c
)

// opcodes holds, for each range of opcodes in order, the immediates, the cost of an instruction, and how many operands
// it adds to the stack. For instructions that call or branch, body.go knows the operands. A gap is no instruction.
var opcodes = []struct {
	first, last int
	imm         immediate
	cost        int64
	adds        int
}{
	{0x00, 0x00, none, 1, 0}, {0x01, 0x01, none, 0, 0}, {0x02, 0x03, immBlock, 0, 0}, {0x04, 0x04, immBlock, 1, -1},
	{0x05, 0x05, none, 0, 0}, {0x0b, 0x0b, none, 0, 0},
	{0x0c, 0x0c, immLabel, 1, 0}, {0x0d, 0x0d, immLabel, 1, -1}, {0x0e, 0x0e, immLabels, 4, -1}, {0x0f, 0x0f, none, 1, 0},
	{0x10, 0x10, immFunc, 4, 0}, {0x11, 0x11, immIndirect, 8, -1}, {0x12, 0x12, immFunc, 4, 0}, {0x13, 0x13, immIndirect, 8, -1},
	{0x1a, 0x1a, none, 1, -1}, {0x1b, 0x1b, none, 1, -2}, {0x1c, 0x1c, immTypes, 1, -2},
	{0x20, 0x20, immLocal, 1, 1}, {0x21, 0x21, immLocal, 1, -1}, {0x22, 0x22, immLocal, 1, 0}, {0x23, 0x23, immGlobal, 1, 1},
	{0x24, 0x24, immGlobal, 1, -1}, {0x25, 0x25, immTable, 2, 0}, {0x26, 0x26, immTable, 2, -2},
	{0x28, 0x35, immAddress, 1, 0}, {0x36, 0x3e, immAddress, 1, -2}, {0x3f, 0x3f, immMemory, 1, 1}, {0x40, 0x40, immMemory, 64, 0},
	{0x41, 0x41, immI32, 1, 1}, {0x42, 0x42, immI64, 1, 1}, {0x43, 0x43, imm4, 1, 1}, {0x44, 0x44, imm8, 1, 1},
	{0x45, 0x45, none, 1, 0}, {0x46, 0x4f, none, 1, -1}, {0x50, 0x50, none, 1, 0}, {0x51, 0x66, none, 1, -1}, // comparisons
	{0x67, 0x69, none, 1, 0}, {0x6a, 0x6c, none, 1, -1}, {0x6d, 0x70, none, 8, -1}, {0x71, 0x78, none, 1, -1}, // i32
	{0x79, 0x7b, none, 1, 0}, {0x7c, 0x7e, none, 1, -1}, {0x7f, 0x82, none, 16, -1}, {0x83, 0x8a, none, 1, -1}, // i64
	// f32
	{0x8b, 0x90, none, 1, 0}, {0x91, 0x91, none, 8, 0}, {0x92, 0x94, none, 1, -1}, {0x95, 0x95, none, 4, -1}, {0x96, 0x98, none, 1, -1},
	// f64
	{0x99, 0x9e, none, 1, 0}, {0x9f, 0x9f, none, 8, 0}, {0xa0, 0xa2, none, 1, -1}, {0xa3, 0xa3, none, 4, -1}, {0xa4, 0xa6, none, 1, -1},
	{0xa7, 0xc4, none, 1, 0}, {0xd0, 0xd0, immRef, 1, 1}, {0xd1, 0xd1, none, 1, 0}, {0xd2, 0xd2, immFunc, 16, 1},

	{0xfc00, 0xfc07, none, 2, 0}, {0xfc08, 0xfc08, immDataMemory, 16, -3}, {0xfc09, 0xfc09, immData, 4, 0},
	{0xfc0a, 0xfc0a, immMemories, 16, -3}, {0xfc0b, 0xfc0b, immMemory, 16, -3}, {0xfc0c, 0xfc0c, immElemTable, 16, -3},
	{0xfc0d, 0xfc0d, immElem, 4, 0}, {0xfc0e, 0xfc0e, immTables, 16, -3}, {0xfc0f, 0xfc0f, immTable, 64, -1},
	{0xfc10, 0xfc10, immTable, 1, 1}, {0xfc11, 0xfc11, immTable, 16, -3},

	// memory, const, shuffle
	{0xfd00, 0xfd0a, immAddress, 1, 0}, {0xfd0b, 0xfd0b, immAddress, 1, -2}, {0xfd0c, 0xfd0c, imm16, 1, 1}, {0xfd0d, 0xfd0d, imm16, 1, -1},
	{0xfd0e, 0xfd0e, none, 1, -1}, {0xfd0f, 0xfd14, none, 1, 0}, // swizzle, splats
	{0xfd15, 0xfd16, immLane, 1, 0}, {0xfd17, 0xfd17, immLane, 1, -1}, {0xfd18, 0xfd19, immLane, 1, 0}, {0xfd1a, 0xfd1a, immLane, 1, -1},
	{0xfd1b, 0xfd1b, immLane, 1, 0}, {0xfd1c, 0xfd1c, immLane, 1, -1}, {0xfd1d, 0xfd1d, immLane, 1, 0}, {0xfd1e, 0xfd1e, immLane, 1, -1},
	{0xfd1f, 0xfd1f, immLane, 1, 0}, {0xfd20, 0xfd20, immLane, 1, -1}, {0xfd21, 0xfd21, immLane, 1, 0}, {0xfd22, 0xfd22, immLane, 1, -1},
	// comparisons, bits
	{0xfd23, 0xfd4c, none, 1, -1}, {0xfd4d, 0xfd4d, none, 1, 0}, {0xfd4e, 0xfd51, none, 1, -1}, {0xfd52, 0xfd52, none, 1, -2},
	{0xfd53, 0xfd53, none, 1, 0},
	{0xfd54, 0xfd57, immAddressLane, 1, -1}, {0xfd58, 0xfd5b, immAddressLane, 1, -2}, {0xfd5c, 0xfd5d, immAddress, 1, 0},
	{0xfd5e, 0xfd5f, none, 1, 0},
	// i8x16
	{0xfd60, 0xfd64, none, 1, 0}, {0xfd65, 0xfd66, none, 1, -1}, {0xfd67, 0xfd6a, none, 1, 0}, {0xfd6b, 0xfd73, none, 1, -1},
	{0xfd74, 0xfd75, none, 1, 0},
	{0xfd76, 0xfd79, none, 1, -1}, {0xfd7a, 0xfd7a, none, 1, 0}, {0xfd7b, 0xfd7b, none, 1, -1}, {0xfd7c, 0xfd81, none, 1, 0},
	{0xfd82, 0xfd82, none, 1, -1},
	// i16x8
	{0xfd83, 0xfd84, none, 1, 0}, {0xfd85, 0xfd86, none, 1, -1}, {0xfd87, 0xfd8a, none, 1, 0}, {0xfd8b, 0xfd93, none, 1, -1},
	{0xfd94, 0xfd94, none, 1, 0}, {0xfd95, 0xfd99, none, 1, -1}, {0xfd9b, 0xfd9f, none, 1, -1},
	// i32x4
	{0xfda0, 0xfda1, none, 1, 0}, {0xfda3, 0xfda4, none, 1, 0}, {0xfda7, 0xfdaa, none, 1, 0}, {0xfdab, 0xfdae, none, 1, -1},
	{0xfdb1, 0xfdb1, none, 1, -1}, {0xfdb5, 0xfdba, none, 1, -1}, {0xfdbc, 0xfdbf, none, 1, -1},
	// i64x2
	{0xfdc0, 0xfdc1, none, 1, 0}, {0xfdc3, 0xfdc4, none, 1, 0}, {0xfdc7, 0xfdca, none, 1, 0}, {0xfdcb, 0xfdce, none, 1, -1},
	{0xfdd1, 0xfdd1, none, 1, -1}, {0xfdd5, 0xfddf, none, 1, -1},
	{0xfde0, 0xfde1, none, 1, 0}, {0xfde3, 0xfde3, none, 4, 0}, {0xfde4, 0xfdeb, none, 4, -1}, {0xfdec, 0xfded, none, 4, 0}, // f32x4
	{0xfdef, 0xfdef, none, 4, 0}, {0xfdf0, 0xfdf7, none, 4, -1}, {0xfdf8, 0xfdff, none, 4, 0}, // f64x2
}

// later names the proposals whose opcodes, by range, are refused.
var later = []struct {
	first, last int
	proposal    string
}{
	{0x06, 0x0a, "exception handling"}, {0x18, 0x19, "exception handling"}, {0x1f, 0x1f, "exception handling"},
	{0x14, 0x15, "typed function references"}, {0xd3, 0xd3, "garbage collection"},
	{0xd4, 0xd6, "typed function references"}, {0xfb00, 0xfbff, "garbage collection"},
	{0xfc12, 0xfc12, "memory discard"}, {0xfc13, 0xfc16, "wide arithmetic"}, {0xfe00, 0xfeff, "threads"},
}

type instruction struct {
	imm  immediate
	cost int64
	adds int
}

// table gives the instructions with a prefix (0 if none) by their opcode.
type table [256]instruction

var plain, bulk, simd = tableOf(0), tableOf(0xfc), tableOf(0xfd)

func tableOf(prefix int) *table {
	var t table
	for _, r := range opcodes {
		for op := r.first; op <= r.last; op++ {
			if op>>8 == prefix {
				t[op&0xff] = instruction{r.imm, r.cost, r.adds}
			}
		}
	}
	return &t
}

// opcode reads one.
func (r *reader) opcode() (op int, in instruction) {
	t := plain
	switch op = int(r.byte()); op {
	case 0xfc:
		t = bulk
	case 0xfd:
		t = simd
	case 0xfb, 0xfe: // refused below
	default:
		if in = plain[op]; in.imm == unknown {
			r.refuseOpcode(op)
		}
		return op, in
	}
	sub := r.u32()
	if sub > 0xff {
		if t == simd {
			r.refuse("relaxed SIMD is not supported (opcode 0xfd %#x)", sub)
		}
		r.refuse("opcode %#x %#x is unknown", op, sub)
	}
	op = op<<8 | int(sub)
	if t != plain {
		in = t[sub]
	}
	if in.imm == unknown {
		r.refuseOpcode(op)
	}
	return op, in
}

func (r *reader) refuseOpcode(op int) {
	text := fmt.Sprintf("%#02x", op)
	if op > 0xff {
		text = fmt.Sprintf("%#x %#02x", op>>8, op&0xff)
	}
	for _, l := range later {
		if l.first <= op && op <= l.last {
			r.refuse("%s is not supported (opcode %s)", l.proposal, text)
		}
	}
	r.refuse("opcode %s is unknown", text)
}
