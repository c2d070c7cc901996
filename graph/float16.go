package graph

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph/scalar"
)

// Float16Op is implemented by the ops that take or return 16-bit floats, f16 and bf16. All others compute in f32, and
// the builder refuses 16-bit floats for them.
type Float16Op interface {
	Op
	TakesFloat16()
}

// Float16 reports whether the dtype is a 16-bit float, f16 or bf16. Two elements share a 32-bit word, the earlier one
// in its low bits; the rest of an odd tensor's last word is zero.
func (d DType) Float16() bool { return d == F16 || d == BF16 }

// Gradient is the type of the gradient of a value of floats: f32, whatever their precision.
func (t Type) Gradient() Type { return Type{F32, t.Shape} }

// refuseFloat16 refuses 16-bit floats for an op that is no Float16Op. remedy says what to do instead.
func refuseFloat16(op Op, what string, ts []Type, remedy string) error {
	if _, ok := op.(Float16Op); ok {
		return nil
	}
	for i, t := range ts {
		if t.DType.Float16() {
			return fmt.Errorf("%s %d is %v: %s is not defined for %v, %s", what, i, t, op.Name(), t.DType, remedy)
		}
	}
	return nil
}

// format is the layout of a 16-bit float below its sign, as in IEEE 754: an exponent above a fraction.
type format struct {
	fraction int // bits
	least    int // exponent of the smallest normal number
}

var formats = [dtypes]format{F16: {10, -14}, BF16: {7, -126}}

// infinity is the bits of infinity. Larger bits are NaNs.
func (f format) infinity() uint64 { return 0x7fff >> f.fraction << f.fraction }

// rebased is the difference between the bits of a normal number as a float64, shifted to the format's fraction, and in
// the format.
func (f format) rebased() uint64 { return uint64(1022+f.least) << f.fraction }

// unit is the distance of denormals.
func (f format) unit() float64 { return math.Ldexp(1, f.least-f.fraction) }

// nearest is the bits of the 16-bit float nearest to x, ties to even. Values beyond the largest become infinite. NaN
// stays NaN, with its sign.
func (f format) nearest(x float64) uint32 {
	b := math.Float64bits(x)
	sign, size, drop := uint32(b>>48)&0x8000, b&^(1<<63), 52-f.fraction
	switch {
	case x != x:
		// quiet, since the dropped bits may be the ones that distinguish it from infinity
		return sign | uint32(f.infinity()|1<<(f.fraction-1)|size>>drop&(1<<f.fraction-1))
	case size>>52 < uint64(1023+f.least):
		return sign | uint32(math.RoundToEven(math.Abs(x)/f.unit()))
	}
	return sign | uint32(min((size+1<<(drop-1)-1+size>>drop&1)>>drop-f.rebased(), f.infinity()))
}

// number is the inverse of nearest.
func (f format) number(bits uint32) float64 {
	sign, size := uint64(bits&0x8000)<<48, uint64(bits&0x7fff)
	switch {
	case size >= f.infinity():
		return math.Float64frombits(sign | 0x7ff<<52 | (size-f.infinity())<<(52-f.fraction))
	case size < 1<<f.fraction:
		return math.Copysign(float64(size)*f.unit(), math.Float64frombits(sign))
	}
	return math.Float64frombits(sign | (size+f.rebased())<<(52-f.fraction))
}

// Bits is the representation of x on a device, rounded to the dtype, in the low 16 bits for 16-bit floats.
func (d DType) Bits(x float64) uint32 {
	switch d {
	case F32:
		return math.Float32bits(float32(x))
	case F16, BF16:
		return formats[d].nearest(x)
	case I32:
		return uint32(int32(x))
	}
	return uint32(x)
}

// FromBits is the inverse of Bits.
func (d DType) FromBits(bits uint32) float64 {
	switch d {
	case F32:
		return float64(math.Float32frombits(bits))
	case F16, BF16:
		return formats[d].number(bits)
	case I32:
		return float64(int32(bits))
	}
	return float64(bits)
}

// Float16At is the bits, a u32, of the 16-bit float at a position of an array of words, which holds two a word.
func Float16At(array string, at Index) *scalar.Expr {
	word, mask := scalar.At(array, scalar.U32, at.Over(2).Expr()), scalar.U(1<<16-1)
	switch part, whole := at.Mod(2).IsConst(); {
	case !whole:
		return word.Bitwise(">>", at.Mod(2).Expr().Mul(scalar.U(16))).And(mask)
	case part == 0:
		return word.And(mask)
	}
	return word.Right(16)
}

// Widen converts a 16-bit float to f32; bits is a u32 that holds it. Only integer operations touch values that may be
// denormal, infinite or NaN, since their treatment in WGSL depends on the device.
func (d DType) Widen(bits *scalar.Expr) *scalar.Expr {
	if d == BF16 {
		return bits.Left(16).As(scalar.F32)
	}
	exponent := bits.And(scalar.U(0x7c00))
	// A denormal is exact as an f32, where it is normal.
	scaled := bits.And(scalar.U(0x3ff)).To(scalar.F32).Mul(scalar.F(0x1p-24)).As(scalar.U32)
	// Exponents of the formats are 112 apart; the exponents of infinities and NaN are 224 apart.
	moved := bits.And(scalar.U(0x7fff)).Left(13)
	finite := scalar.Select(moved.Add(scalar.U(112<<23)), scaled, exponent.Equal(scalar.U(0)))
	size := scalar.Select(finite, moved.Add(scalar.U(224<<23)), exponent.Equal(scalar.U(0x7c00)))
	return bits.And(scalar.U(0x8000)).Left(16).Or(size).As(scalar.F32)
}

// Narrow is the bits, a u32, of the 16-bit float nearest to an f32, as Round defines it; let names an expression. It
// works on the bits alone: the rounding of WGSL's own conversions depends on the device, and the result of values out
// of range is undefined.
func (d DType) Narrow(x *scalar.Expr, let func(*scalar.Expr) *scalar.Expr) *scalar.Expr {
	const sizeBits, infinity = 1<<31 - 1, 255 << 23
	one := scalar.U(1)
	u := let(x.As(scalar.U32))
	if d == BF16 {
		rounded := u.Add(scalar.U(1<<15 - 1)).Add(u.Right(16).And(one)).Right(16)
		return scalar.Select(rounded, u.Right(16).Or(scalar.U(64)), u.And(scalar.U(sizeBits)).More(scalar.U(infinity)))
	}
	a := let(u.And(scalar.U(sizeBits)))
	normal := a.Sub(scalar.U(112<<23 - 1<<12 + 1)).Add(a.Right(13).And(one)).Right(13) // rebased exponent, and half a unit less one
	m := let(a.And(scalar.U(1<<23 - 1)).Or(scalar.U(1 << 23)))
	s := let(scalar.Apply("clamp", scalar.U(126).Sub(a.Right(23)), scalar.U(14), scalar.U(25))) // the unit of denormals is 2⁻²⁴
	half := one.Bitwise("<<", s.Sub(one))
	denormal := m.Add(half).Sub(one).Add(m.Bitwise(">>", s).And(one)).Bitwise(">>", s)
	finite := let(scalar.Select(normal, denormal, a.Less(scalar.U(113<<23))))
	large := let(scalar.Select(finite, scalar.U(0x7c00), a.AtLeast(scalar.U(0x477ff000)))) // 65520 and beyond
	nan := scalar.U(0x7e00).Or(a.Right(13).And(scalar.U(0x3ff)))
	return scalar.Select(large, nan, a.More(scalar.U(infinity))).Or(u.Right(16).And(scalar.U(0x8000)))
}

// Scalar is the type of an element in an array, and in a kernel's registers where it is not converted: of 16-bit
// floats, which are two a word in arrays, a u32 is the bits of one.
func (d DType) Scalar() scalar.Type {
	switch d {
	case F32:
		return scalar.F32
	case I32:
		return scalar.I32
	}
	return scalar.U32
}
