package graph

import (
	"encoding/json"
	"math"
	"strconv"
)

// Real is a float64 attribute of an op. Its JSON is a number, or "inf", "-inf" or "nan", which JSON lacks.
type Real float64

// String formats whole numbers with all their digits, which %v does only below a million, and other numbers as short as
// possible.
func (r Real) String() string {
	if f := math.Abs(float64(r)); f == 0 || f >= 1 && f < 1<<53 {
		return strconv.FormatFloat(float64(r), 'f', -1, 64)
	}
	return strconv.FormatFloat(float64(r), 'g', -1, 64)
}

// MarshalJSON writes the shortest number that is read as the same bits.
func (r Real) MarshalJSON() ([]byte, error) {
	f := float64(r)
	switch {
	case math.IsNaN(f):
		return []byte(`"nan"`), nil
	case math.IsInf(f, 1):
		return []byte(`"inf"`), nil
	case math.IsInf(f, -1):
		return []byte(`"-inf"`), nil
	}
	return json.Marshal(f)
}

// MarshalJSON writes a scalar's shape as [], so that equal shapes have equal text.
func (s Shape) MarshalJSON() ([]byte, error) {
	if len(s) == 0 {
		return []byte("[]"), nil
	}
	return json.Marshal([]int(s))
}

// Round is the value of the dtype nearest to x, ties to even; integers are x itself.
func (d DType) Round(x float64) float64 {
	switch {
	case d == F32: // the most frequent
		return float64(float32(x))
	case d.Float():
		return d.FromBits(d.Bits(x))
	}
	return x
}
