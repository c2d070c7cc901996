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

// Bits is how a device stores x, rounded to the dtype: 16 bits of halves, 32 of others.
func (d DType) Bits(x float64) uint32 {
	switch d {
	case F32:
		return math.Float32bits(float32(x))
	case BF16:
		return math.Float32bits(float32(d.Round(x))) >> 16
	case F16:
		return bitsF16(d.Round(x))
	case I32:
		return uint32(int32(x))
	}
	return uint32(x)
}

func bitsF16(x float64) uint32 {
	sign, a := uint32(math.Float64bits(x)>>48)&0x8000, math.Abs(x)
	switch {
	case math.IsNaN(x):
		return 0x7e00
	case a > 65504:
		return sign | 0x7c00
	case a < 0x1p-14:
		return sign | uint32(a*0x1p24)
	}
	fraction, e := math.Frexp(a)
	return sign | (uint32(e+14)<<10 + uint32(fraction*2048) - 1024)
}

// FromBits is the inverse of Bits.
func (d DType) FromBits(bits uint32) float64 {
	switch d {
	case F32:
		return float64(math.Float32frombits(bits))
	case BF16:
		return float64(math.Float32frombits(bits << 16))
	case F16:
		return fromF16(bits)
	case I32:
		return float64(int32(bits))
	}
	return float64(bits)
}

func fromF16(bits uint32) float64 {
	sign, e, m := 1.0, int(bits>>10&31), float64(bits&1023)
	if bits&0x8000 != 0 {
		sign = -1
	}
	switch {
	case e == 0:
		return math.Copysign(m*0x1p-24, sign)
	case e < 31:
		return sign * math.Ldexp(1024+m, e-25)
	case m == 0:
		return math.Inf(int(sign))
	}
	return math.NaN()
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
	return "(select(" + large + ", 32256u, " + a + " > 2139095040u) | ((" + u + " >> 16u) & 32768u))"
}
