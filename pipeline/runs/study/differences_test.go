package study

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

// Gaps are paired by seed: noise that two modes share cancels.
func TestPairedGaps(t *testing.T) {
	sync := []float64{1, 2, 3}
	late := []float64{1.1, 2.3, 3.2}
	gap := runs.NewEstimate(differences(late, sync))
	diff := make([]float64, 3)
	floats.SubTo(diff, late, sync)
	mean, std := stat.MeanStdDev(diff, nil)
	assert.InDelta(t, mean, gap.Mean, 1e-15)
	assert.InDelta(t, stat.StdErr(std, 3), gap.Err, 1e-15)
	assert.Less(t, gap.Err, runs.NewEstimate(late).Err/5)
	assert.InDelta(t, 0.2/gap.Err, gap.Errors(), 1e-9)

	assert.True(t, math.IsInf(runs.NewEstimate(differences([]float64{1, math.Inf(1)}, []float64{1, 2})).Mean, 1))
	for _, a := range []float64{1, math.Inf(1)} {
		assert.True(t, math.IsNaN(runs.NewEstimate(differences([]float64{a}, []float64{math.Inf(1)})).Mean), "nothing to compare with")
	}
	assert.Panics(t, func() { differences([]float64{1}, nil) })
}
