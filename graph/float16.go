package graph

import (
	"fmt"
	"math"
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

// refuseFloat16 refuses 16-bit floats for an op that is no Float16Op; remedy is what to do instead.
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
		return sign | uint32(f.infinity()|1<<(f.fraction-1)|size>>drop&(1<<f.fraction-1)) // quiet, since the dropped bits may be the ones that distinguish it from infinity
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

// Float16At is the WGSL expression of the bits, a u32, of the 16-bit float at a position of an array<u32>, which holds
// two a word.
func Float16At(array string, at Index) string {
	word := fmt.Sprintf("%s[%v]", array, at.Over(2))
	switch part, whole := at.Mod(2).IsConst(); {
	case !whole:
		return fmt.Sprintf("((%s >> ((%v) * 16u)) & 65535u)", word, at.Mod(2))
	case part == 0:
		return "(" + word + " & 65535u)"
	}
	return "(" + word + " >> 16u)"
}

// Widen is the WGSL expression that converts a 16-bit float to f32; bits names a u32 that holds it. Only integer
// operations touch values that may be denormal, infinite or NaN, since their treatment in WGSL depends on the device.
func (d DType) Widen(bits string) string {
	if d == BF16 {
		return "bitcast<f32>(" + bits + " << 16u)"
	}
	scaled := "bitcast<u32>(f32(" + bits + " & 1023u) * 5.9604645e-08f)" // a denormal: exact, and normal in f32
	moved := "((" + bits + " & 32767u) << 13u)"                          // exponents are 112 apart, twice that for what is not finite
	finite := "select(" + moved + " + 939524096u, " + scaled + ", (" + bits + " & 31744u) == 0u)"
	return "bitcast<f32>(((" + bits + " & 32768u) << 16u) | select(" + finite + ", " + moved + " + 1879048192u, (" + bits + " & 31744u) == 31744u))"
}

// Narrow is the WGSL expression of the bits, a u32, of the 16-bit float nearest to an f32, as Round defines it; let
// names an expression of a type. It works on the bits alone: the rounding of WGSL's own conversions depends on the
// device, and the result of values out of range is undefined.
func (d DType) Narrow(x string, let func(typ, expr string) string) string {
	u := let("u32", "bitcast<u32>("+x+")")
	if d == BF16 {
		return "select((" + u + " + 32767u + ((" + u + " >> 16u) & 1u)) >> 16u, (" + u + " >> 16u) | 64u, (" + u + " & 2147483647u) > 2139095040u)"
	}
	a := let("u32", u+" & 2147483647u")
	normal := "(" + a + " - 939520001u + ((" + a + " >> 13u) & 1u)) >> 13u" // rebased exponent, and half a unit less one
	m := let("u32", "("+a+" & 8388607u) | 8388608u")
	s := let("u32", "clamp(126u - ("+a+" >> 23u), 14u, 25u)") // the unit of denormals is 2⁻²⁴
	denormal := "(" + m + " + (1u << (" + s + " - 1u)) - 1u + ((" + m + " >> " + s + ") & 1u)) >> " + s
	finite := let("u32", "select("+normal+", "+denormal+", "+a+" < 947912704u)")
	large := let("u32", "select("+finite+", 31744u, "+a+" >= 1199566848u)") // 65520 and beyond
	return "(select(" + large + ", 32256u | ((" + a + " >> 13u) & 1023u), " + a + " > 2139095040u) | ((" + u + " >> 16u) & 32768u))"
}
