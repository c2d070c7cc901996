package graph

import (
	"fmt"
	"math"
)

// HalfOp is implemented by the ops that take or give halves, f16 and bf16. All others compute in f32, and the builder
// refuses halves for them.
type HalfOp interface {
	Op
	Halves()
}

// Half tells whether the dtype has 16 bits. Two elements share a 32-bit word, the earlier one in its low bits; the rest of
// an odd tensor's last word is zero.
func (d DType) Half() bool { return d == F16 || d == BF16 }

// Gradient is the type of the gradient of a value of floats: f32, whatever their precision.
func (t Type) Gradient() Type { return Type{F32, t.Shape} }

// noHalves refuses halves for an op that is no HalfOp; remedy is what to do instead.
func noHalves(op Op, what string, ts []Type, remedy string) error {
	if _, ok := op.(HalfOp); ok {
		return nil
	}
	for i, t := range ts {
		if t.DType.Half() {
			return fmt.Errorf("%s %d is %v: %s is not defined for %v, %s", what, i, t, op.Name(), t.DType, remedy)
		}
	}
	return nil
}

// format is how a half's 15 bits beside its sign are laid out, as those of IEEE 754's types are: an exponent above a fraction.
type format struct {
	fraction int // bits
	least    int // exponent of the smallest normal number
}

var formats = [dtypes]format{F16: {10, -14}, BF16: {7, -126}}

// infinity is also where the bits of NaNs begin, after it.
func (f format) infinity() uint64 { return 0x7fff >> f.fraction << f.fraction }

// rebased is how much less the bits of a normal number are than those of a float64, shifted to the format's place.
func (f format) rebased() uint64 { return uint64(1022+f.least) << f.fraction }

// unit is the distance of denormals.
func (f format) unit() float64 { return math.Ldexp(1, f.least-f.fraction) }

// nearest is the bits of the half nearest to x, ties to even; what is beyond the largest becomes infinite. NaN stays NaN, with its sign.
func (f format) nearest(x float64) uint32 {
	b := math.Float64bits(x)
	sign, size, drop := uint32(b>>48)&0x8000, b&^(1<<63), 52-f.fraction
	switch {
	case x != x:
		return sign | uint32(f.infinity()|1<<(f.fraction-1)|size>>drop&(1<<f.fraction-1)) // quiet: what tells it from infinity may be among the bits that go
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

// Bits is how a device stores x, rounded to the dtype: 16 bits of halves, 32 of others.
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

// HalfAt is the WGSL expression of the bits of a half, a u32, at a position of an array<u32> that holds halves.
func HalfAt(array string, at Index) string {
	word := fmt.Sprintf("%s[%v]", array, at.Over(2))
	switch part, whole := at.Mod(2).IsConst(); {
	case !whole:
		return fmt.Sprintf("((%s >> ((%v) * 16u)) & 65535u)", word, at.Mod(2))
	case part == 0:
		return "(" + word + " & 65535u)"
	}
	return "(" + word + " >> 16u)"
}

// Widen is the WGSL expression of the f32 that a half is; bits names a u32 that holds it. Only integer operations touch
// what might be a denormal, an infinity or NaN, since WGSL lets devices treat these as they like.
func (d DType) Widen(bits string) string {
	if d == BF16 {
		return "bitcast<f32>(" + bits + " << 16u)"
	}
	scaled := "bitcast<u32>(f32(" + bits + " & 1023u) * 5.9604645e-08f)" // a denormal: exact, and normal in f32
	moved := "((" + bits + " & 32767u) << 13u)"                          // exponents are 112 apart, twice that for what is not finite
	finite := "select(" + moved + " + 939524096u, " + scaled + ", (" + bits + " & 31744u) == 0u)"
	return "bitcast<f32>(((" + bits + " & 32768u) << 16u) | select(" + finite + ", " + moved + " + 1879048192u, (" + bits + " & 31744u) == 31744u))"
}

// Narrow is the WGSL expression of the bits, a u32, of the half nearest to an f32, as Round defines it; let names an
// expression of a type. It works on the bits alone: the rounding of WGSL's own conversions is the device's choice, and what
// is too large is undefined.
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
