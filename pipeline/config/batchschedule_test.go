package config_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func scheduled(overrides ...string) (config.Config, error) {
	return config.Parse("test", nil, append([]string{"model={vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 8}",
		"data.train=[a.txt]", "run.dir=r", "train={microbatches: 2}"}, overrides...))
}

func TestBatchSchedule(t *testing.T) {
	c, err := scheduled("train.batch_schedule={0: 4, 1000: 8, 1500: 6}")
	require.NoError(t, err)
	for step, want := range map[int][2]int{0: {4, 2}, 999: {4, 2}, 1000: {8, 4}, 1499: {8, 4}, 1500: {6, 3}, 9999: {6, 3}} {
		at := c.At(step)
		assert.Equal(t, want, [2]int{at.Train.BatchSize, at.Train.Microbatches}, "step %d", step)
		assert.Equal(t, c, at.At(0))
		assert.Equal(t, string(c.YAML()), string(at.YAML()))
	}
	assert.Equal(t, 1000, c.NextBatchSize(0))
	assert.Equal(t, 1500, c.NextBatchSize(1000))
	assert.Zero(t, c.NextBatchSize(1500))
	assert.EqualValues(t, 10*4+500*8+20*6, c.Sequences(990, 1520))
	assert.Equal(t, 8, c.Largest().Train.BatchSize)
	again, err := config.Parse("saved", c.YAML(), nil)
	require.NoError(t, err)
	assert.Equal(t, c.Train, again.Train)

	other, err := config.Parse("saved", c.YAML(), []string{"train.batch_schedule={0: 6, 100: 12}"})
	require.NoError(t, err, "the command line wins over the file's train.batch_size")
	assert.Equal(t, 6, other.Train.BatchSize)

	later, err := scheduled("train.batch_size=4", "train.batch_schedule={10: 8}")
	require.NoError(t, err)
	assert.Equal(t, config.BatchSchedule{0: 4, 10: 8}, later.Train.BatchSchedule)
}

func TestBatchScheduleRefuses(t *testing.T) {
	for want, overrides := range map[string][]string{
		"train.batch_schedule: found 7, expected from step 5 on a multiple of 2, the sequences of a microbatch": {"train.batch_schedule={0: 4, 5: 7}"},
		"train.batch_schedule: found 0, expected from step 5 on an integer from 1":                              {"train.batch_schedule={0: 4, 5: 0}"},
		"train.batch_size: found 16, expected 4, the first size of train.batch_schedule": {"train.batch_size=16",
			"train.batch_schedule={0: 4}"},
		"train.batch_schedule: found the integer 64, expected sizes of batches by the step": {"train.batch_schedule=64"},
		"train.batch_schedule: found -1": {"train.batch_schedule={-1: 4}"},
		"train.batch_schedule: found a":  {"train.batch_schedule={a: 4}"},
		"train.batch_schedule: found 2, expected a size that 1 microbatches of 2 sequences allow from step 5 on: train.microbatches: found 1": {"train.batch_schedule={0: 4, 5: 2}", "pipeline={schedule: 2bw, stages: 2}"},
	} {
		_, err := scheduled(overrides...)
		assert.ErrorContains(t, err, want)
	}
}
