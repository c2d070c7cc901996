package runs

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat"
)

func TestEstimate(t *testing.T) {
	e := NewEstimate([]float64{1, 2, 3, 4})
	assert.Equal(t, 2.5, e.Mean)
	assert.InDelta(t, math.Sqrt(5.0/3/4), e.Err, 1e-15, "s² = 5/3")
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 20 {
		xs := make([]float64, n+2)
		for i := range xs {
			xs[i] = 5 + rng.NormFloat64()
		}
		mean, variance := stat.MeanVariance(xs, nil)
		e := NewEstimate(xs)
		assert.InDelta(t, mean, e.Mean, 1e-12)
		assert.InDelta(t, math.Sqrt(variance/float64(len(xs))), e.Err, 1e-12)
	}
	one := NewEstimate([]float64{3})
	assert.Equal(t, 3.0, one.Mean)
	assert.True(t, math.IsNaN(one.Err))
	assert.True(t, math.IsInf(NewEstimate([]float64{1, math.Inf(1)}).Mean, 1))
}

func TestEstimatesAsText(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for want, e := range map[string]Estimate{
		"1.2346 ± 0.0012": {1.23456, 0.00123}, "1.2346": {1.23456, nan}, "diverged": {inf, nan}, "–": {nan, nan},
	} {
		assert.Equal(t, want, e.String())
	}
	assert.Equal(t, "+0.1000 ± 0.0100", Estimate{0.1, 0.01}.Signed())
	assert.Equal(t, "-0.1000", Estimate{-0.1, nan}.Signed())
	assert.Equal(t, 10.0, Estimate{-0.1, 0.01}.Errors())
	for _, e := range []Estimate{{inf, nan}, {0.1, nan}, {0.1, 0}} {
		assert.Zero(t, e.Errors())
	}
	out, err := json.Marshal([]Estimate{{1, 0.5}, {inf, nan}})
	require.NoError(t, err)
	assert.JSONEq(t, `[{"mean": 1, "stderr": 0.5}, {"mean": null, "stderr": null}]`, string(out))
}
