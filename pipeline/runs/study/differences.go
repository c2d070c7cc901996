package study

import (
	"fmt"
	"math"
)

// differences are a − b, seed by seed, so that the effect of the seed cancels out. A difference is infinite if a
// diverged, and NaN if b diverged.
func differences(a, b []float64) []float64 {
	if len(a) != len(b) {
		panic(fmt.Sprintf("study: %d losses against %d", len(a), len(b)))
	}
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
		if math.IsInf(b[i], 0) {
			d[i] = math.NaN()
		}
	}
	return d
}
