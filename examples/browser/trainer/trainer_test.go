package trainer_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/examples/browser/trainer"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
)

func small() trainer.Config {
	c := trainer.Defaults()
	c.Model.DModel, c.Model.NLayers, c.Model.NHeads, c.Model.NKVHeads, c.Model.FFN.DFF, c.Model.SeqLen = 32, 1, 2, 2, 64, 16
	c.BatchSize, c.Steps, c.Warmup, c.AdamWLR = 4, 60, 5, 0.02
	return c
}

// A model learns a periodic text and continues it, here on native code. examples/browser trains in the page, on WebGPU.
func TestTrainAndSample(t *testing.T) {
	dev := testdevice.Device(t)
	text := []byte(strings.Repeat("abcd", 100))
	run, err := trainer.New(dev, small(), text, trainer.Hooks{})
	require.NoError(t, err)
	defer func() { require.NoError(t, run.Close()) }()
	var losses []float64
	note := func(step int, loss float64) {
		assert.Equal(t, len(losses)+1, step)
		losses = append(losses, loss)
	}
	for run.Step() < 60 {
		require.NoError(t, run.Train(t.Context(), 25, note))
	}
	require.Len(t, losses, 60)
	assert.InDelta(t, 5.5, losses[0], 0.2, "ln 256")
	assert.Less(t, losses[59], 0.3)
	got, err := run.Sample(t.Context(), []byte("xabcdab"), 9, 0)
	require.NoError(t, err)
	assert.Equal(t, "cdabcdabc", string(got))
	got, err = run.Sample(t.Context(), nil, 100, 0.8)
	require.NoError(t, err)
	assert.Len(t, got, 15, "no more than the context holds")
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = run.Sample(stopped, nil, 5, 0)
	require.ErrorIs(t, err, context.Canceled)
}

func TestMistakes(t *testing.T) {
	text := []byte(strings.Repeat("abcd", 100))
	for want, change := range map[string]func(c *trainer.Config){
		"vocab_size: found 300":  func(c *trainer.Config) { c.Model.VocabSize = 300 },
		"batch_size, steps":      func(c *trainer.Config) { c.BatchSize = 0 },
		"the text has 400 bytes": func(c *trainer.Config) { c.Model.SeqLen = 400 },
		"optimizer.name":         func(c *trainer.Config) { c.Optimizer = "magic" },
		"n_layers":               func(c *trainer.Config) { c.Model.NLayers = 0 },
	} {
		c := small()
		change(&c)
		_, err := trainer.New(nil, c, text, trainer.Hooks{})
		assert.ErrorContains(t, err, want)
	}
}
