package wasmtest

import (
	"encoding/binary"
	"math"
	"slices"
)

// Opcodes with no immediates, by their names in the text format.
const (
	Unreachable = 0x00
	Nop         = 0x01
	Else        = 0x05
	End         = 0x0b
	Return      = 0x0f
	Drop        = 0x1a
	Select      = 0x1b
	I32Eqz      = 0x45
	I32Eq       = 0x46
	I32LtU      = 0x49
	I32GeU      = 0x4f
	I32Add      = 0x6a
	I32Sub      = 0x6b
	I32Mul      = 0x6c
	I32DivS     = 0x6d
	I32RemU     = 0x70
	I32And      = 0x71
	I32Xor      = 0x73
	I32ShrU     = 0x76
	I64Add      = 0x7c
	I64Sub      = 0x7d
	I64Mul      = 0x7e
	F32Add      = 0x92
	F32Sqrt     = 0x91
	F64Div      = 0xa3
	I32WrapI64  = 0xa7
	I32TruncF64 = 0xaa
	I64ExtendU  = 0xad
)

// Seq puts code together: bytes, slices of bytes, and opcodes as untyped constants.
func Seq(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = append(b, byte(p))
		case byte:
			b = append(b, p)
		case []byte:
			b = append(b, p...)
		default:
			panic("wasmtest: no code")
		}
	}
	return b
}

// U32 is an unsigned LEB128 number.
func U32(v uint32) []byte { return binary.AppendUvarint(nil, uint64(v)) }

// S64 is a signed LEB128 number.
func S64(v int64) []byte {
	var b []byte
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func op(code byte, index uint32) []byte { return append([]byte{code}, U32(index)...) }

func Const(v int32) []byte    { return append([]byte{0x41}, S64(int64(v))...) }
func ConstI64(v int64) []byte { return append([]byte{0x42}, S64(v)...) }
func ConstF32(v float32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0x43}, math.Float32bits(v))
}
func ConstF64(v float64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0x44}, math.Float64bits(v))
}
func Get(local uint32) []byte    { return op(0x20, local) }
func Set(local uint32) []byte    { return op(0x21, local) }
func Tee(local uint32) []byte    { return op(0x22, local) }
func GGet(global uint32) []byte  { return op(0x23, global) }
func GSet(global uint32) []byte  { return op(0x24, global) }
func Call(f uint32) []byte       { return op(0x10, f) }
func ReturnCall(f uint32) []byte { return op(0x12, f) }
func Br(label uint32) []byte     { return op(0x0c, label) }
func BrIf(label uint32) []byte   { return op(0x0d, label) }
func RefFunc(f uint32) []byte    { return op(0xd2, f) }

// CallIndirect calls through table 0.
func CallIndirect(typ uint32) []byte { return append(op(0x11, typ), 0) }

// BrTable branches to one of labels, else to the last.
func BrTable(labels ...uint32) []byte {
	b := op(0x0e, uint32(len(labels)-1))
	for _, l := range labels {
		b = append(b, U32(l)...)
	}
	return b
}

// Load and Store of 32 bits, at an offset.
func Load(offset uint32) []byte  { return append([]byte{0x28, 2}, U32(offset)...) }
func Store(offset uint32) []byte { return append([]byte{0x36, 2}, U32(offset)...) }

// StoreF32 of a float at an offset.
func StoreF32(offset uint32) []byte { return append([]byte{0x38, 2}, U32(offset)...) }

// LoadF32 of a float at an offset.
func LoadF32(offset uint32) []byte { return append([]byte{0x2a, 2}, U32(offset)...) }

// Block, Loop and If hold code; typ is a block type of one byte.
func Block(typ byte, parts ...any) []byte { return Seq(0x02, typ, Seq(parts...), End) }
func Loop(typ byte, parts ...any) []byte  { return Seq(0x03, typ, Seq(parts...), End) }
func If(typ byte, parts ...any) []byte    { return Seq(0x04, typ, Seq(parts...), End) }

// MemorySize, MemoryGrow, MemoryCopy and MemoryFill take their operands from the stack.
func MemorySize() []byte { return []byte{0x3f, 0} }
func MemoryGrow() []byte { return []byte{0x40, 0} }
func MemoryCopy() []byte { return []byte{0xfc, 10, 0, 0} }
func MemoryFill() []byte { return []byte{0xfc, 11, 0} }

// MemoryInit copies from a data segment.
func MemoryInit(segment uint32) []byte { return append(append([]byte{0xfc, 8}, U32(segment)...), 0) }

// TableGrow grows table 0.
func TableGrow() []byte { return []byte{0xfc, 15, 0} }

// TableFill fills table 0.
func TableFill() []byte { return []byte{0xfc, 17, 0} }

// RefNull is a null function.
func RefNull() []byte { return []byte{0xd0, FuncRef} }

// Repeat is code n times over.
func Repeat(n int, code []byte) []byte { return slices.Repeat(code, n) }
