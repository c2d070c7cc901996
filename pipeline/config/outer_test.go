package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// independent is a valid config of replicas that train on their own.
func independent(t *testing.T, overrides ...string) (Config, error) {
	t.Helper()
	return Parse("c.yaml", []byte(`
model: {preset: tiny}
data: {train: [a.txt]}
train: {batch_size: 16, microbatches: 8}
pipeline: {replicas: 2, local_steps: 8, outer: {wire: int4, late: 3}}
run: {dir: runs/x}
`), overrides)
}

func TestReplicasThatTrainOnTheirOwn(t *testing.T) {
	c, err := independent(t)
	require.NoError(t, err)
	assert.True(t, c.Pipeline.Independent())
	assert.Equal(t, 1, c.Pipeline.SyncReplicas())
	one := c.OfReplica()
	assert.Equal(t, []int{8, 4, 1, 0}, []int{one.Train.BatchSize, one.Train.Microbatches, one.Pipeline.Replicas, one.Pipeline.LocalSteps})
	assert.Equal(t, c.MicrobatchesPerReplica(), one.MicrobatchesPerReplica())
	assert.Equal(t, c.Rows(), one.Rows())
	o := c.OuterOptimizer()
	assert.Equal(t, "int4", o.Format)
	assert.InDelta(t, 3.0/8, o.Lateness, 1e-12)
	c, err = independent(t, "pipeline.local_steps=0", "pipeline.outer.late=0")
	require.NoError(t, err)
	assert.False(t, c.Pipeline.Independent())
	assert.Equal(t, 2, c.Pipeline.SyncReplicas())
}

func TestOuterIsChecked(t *testing.T) {
	for override, want := range map[string]string{
		"pipeline.local_steps=-1":         "pipeline.local_steps: found -1, expected an integer from 0",
		"pipeline.outer.late=9":           "pipeline.outer.late: found 9, expected an integer from 0 to pipeline.local_steps (8)",
		"pipeline.outer.lr=0":             "pipeline.outer.lr: found 0, expected a number above 0",
		"pipeline.outer.momentum=1":       "pipeline.outer.momentum: found 1, expected",
		"pipeline.outer.wire=int3":        `pipeline.outer.wire: found "int3", expected one of f32, bf16, int8, int4, int2`,
		"pipeline.outer.correction=eagre": `pipeline.outer.correction: found "eagre", expected one of`,
		"pipeline.outer.steps=1":          "pipeline.outer.steps",
		"pipeline.replicas=3":             "train.microbatches: found 8, expected a multiple of pipeline.replicas (3)",
		"train.nonfinite=skip":            "pipeline.local_steps: found 8, expected 0 with train.nonfinite skip",
	} {
		_, err := independent(t, override)
		assert.ErrorContains(t, err, want, override)
	}
}
