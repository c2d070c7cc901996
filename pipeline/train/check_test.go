package train_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The text that Check has read serves all attempts of a run, which report what was found in it.
func TestTextsAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.txt")
	require.NoError(t, os.WriteFile(empty, nil, 0o666))
	overrides := []string{"train={steps: 4, batch_size: 4, eval_every: 2, save_every: 2}", "data.train[1]=" + empty}
	c := traintest.Demo(t, dir, append(overrides, "run.dir="+filepath.Join(dir, "whole"))...)
	whole := runtest.Until(t, c, 0)

	c = traintest.Demo(t, dir, append(overrides, "run.dir="+filepath.Join(dir, "run"))...)
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	texts, err := train.Check(t.Context(), c, o, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, texts.Close()) })
	assert.NoDirExists(t, c.Run.Dir)
	require.NoError(t, os.Remove(c.Data.Train[0]))
	var res train.Result
	for _, stop := range []int{2, 0} {
		n := &runtest.Notes{}
		o := runtest.Options(&traintest.Reference{}, n)
		o.Prepared.Texts, o.Resume, o.StopAfter = texts, true, stop
		res, err = train.Run(t.Context(), c, o)
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(strings.Join(n.Text, "\n"), empty))
	}
	assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, res.Checkpoint))
	assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, res.Dir))
}

// Check refuses a model of which this process cannot hold the least share, with all the memory in the world elsewhere.
func TestCheckOfMemory(t *testing.T) {
	for _, x := range []struct {
		overrides []string
		local     []string
		memory    int64
		refused   string // "": accepted
	}{
		{[]string{"pipeline.stages=1", "pipeline.recompute=never"}, []string{"null:0"}, 1 << 10, "1 KiB available"},
		{[]string{"pipeline.stages=1"}, []string{"null:0", "null:1"}, 1 << 30, ""},
		{[]string{"pipeline.stages=3", "pipeline.schedule=1f1b"}, []string{"null:0"}, 1 << 10, "does not fit on null:0: "},
		{[]string{"pipeline.stages=3", "pipeline.schedule=1f1b"}, []string{"null:0"}, 1 << 20, ""},
		{[]string{"pipeline.stages=2", "pipeline.schedule=1f1b"}, []string{"null:0", "null:0"}, 1 << 20, "does not fit on null:0: "},
		{[]string{"pipeline.stages=2", "pipeline.schedule=1f1b", "pipeline.replicas=2"}, []string{"null:0"}, 1 << 10,
			"does not fit on null:0 and member's device 2: "},
		{[]string{"pipeline.stages=3", "pipeline.schedule=1f1b", "pipeline.memory=1MiB"}, []string{"null:0"}, 0, "does not fit on"},
		{[]string{"pipeline.stages=2", "pipeline.schedule=gpipe", "pipeline.recompute=never"}, []string{"null:0", "null:0"}, 32 << 20, ""},
		{[]string{"pipeline.stages=2", "pipeline.schedule=gpipe", "pipeline.recompute=never", "train.batch_schedule={0: 16, 50: 2048}"},
			[]string{"null:0", "null:0"}, 32 << 20, "train.batch_schedule: batches of 2048 sequences: stage"},
		{[]string{"pipeline.stages=3"}, nil, 1 << 10, ""},
	} {
		c := planned(t, x.overrides...)
		open := train.DeviceOptions{Open: sized(map[string]int64{"null:0": x.memory})}
		texts, err := train.Check(t.Context(), c, train.Options{Devices: open}, x.local)
		if x.refused == "" {
			require.NoError(t, err, x.overrides)
			require.NoError(t, texts.Close())
		} else {
			require.ErrorContains(t, err, x.refused, x.overrides)
			assert.ErrorAs(t, err, new(*usererror.Error))
		}
		assert.NoDirExists(t, c.Run.Dir)
	}
}
