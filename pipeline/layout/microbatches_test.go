package layout

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Divisions share the batch evenly, and every stage of every replica has a microbatch.
func TestDivisions(t *testing.T) {
	for _, c := range []struct {
		overrides []string
		want      []int
	}{
		{[]string{"train={batch_size: 64, microbatches: 8}"}, []int{2, 4, 8, 16, 32, 64}},
		{[]string{"train={batch_size: 16, microbatches: 8}"}, []int{2, 4, 8, 16}},
		{[]string{"train={batch_size: 48, microbatches: 6}"}, []int{3, 6, 12, 24, 48}},
		{[]string{"train={batch_size: 64, microbatches: 8}", "pipeline.replicas=2"}, []int{4, 8, 16, 32, 64}},
		{[]string{"train={batch_size: 64, microbatches: 4}", "pipeline.stages=4"}, []int{4, 8, 16, 32}},
	} {
		assert.Equal(t, c.want, divisions(planned(t, c.overrides...).Config), c.overrides)
	}
}

// The least staleness wins among divisions that are nearly as fast as the fastest.
func TestRecommendMicrobatches(t *testing.T) {
	all := []Microbatching{{Staleness: 0.5, TokensPerSec: 100}, {Staleness: 0.25, TokensPerSec: 98}, {Staleness: 0.125, TokensPerSec: 90}}
	recommendMicrobatches(all)
	assert.Equal(t, []bool{false, true, false}, []bool{all[0].Recommended, all[1].Recommended, all[2].Recommended})
	recommendMicrobatches(nil)
}

// Only a schedule with a delay and a config that leaves the number of stale microbatches open are compared.
func TestCompareMicrobatches(t *testing.T) {
	delayed := partition.Candidate{Schedule: schedule.TwoBW, Chunks: 1, Delay: 1}
	for _, c := range []struct {
		overrides []string
		with      partition.Candidate
		want      []float64
	}{
		{nil, delayed, []float64{0.5, 0.25, 0.125, 0.0625}},
		{nil, partition.Candidate{Schedule: schedule.OneF1B, Chunks: 1}, nil},
		{[]string{"pipeline.schedule=2bw", "pipeline.stale_microbatches=all"}, delayed, nil},
	} {
		all, err := planned(t, c.overrides...).compareMicrobatches(t.Context(), nulls(2, 1<<30), measure.Options{}, c.with)
		require.NoError(t, err)
		var got []float64
		for _, m := range all {
			assert.Equal(t, 1, m.Stale, "of two stages")
			got = append(got, m.Staleness)
		}
		assert.Equal(t, c.want, got)
	}
}

// A division whose microbatches are larger than the devices can bind is left out.
func TestDivisionsThatDoNotFit(t *testing.T) {
	limits := target.DefaultLimits()
	limits.MaxBindingSize = 300 << 10 // the logits of four sequences take 256 KiB
	devices := []device.Device{null.New(null.Options{Limits: &limits}), null.New(null.Options{Limits: &limits})}
	all, err := planned(t).compareMicrobatches(t.Context(), devices, measure.Options{},
		partition.Candidate{Schedule: schedule.TwoBW, Chunks: 1, Delay: 1})
	require.NoError(t, err)
	assert.Len(t, all, 3)
	assert.Equal(t, 4, all[0].Microbatches)
}
