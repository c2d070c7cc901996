package train_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request for a checkpoint saves one within the next steps. The run goes on, to the bits of a run without requests.
func TestSaveOnRequest(t *testing.T) {
	for _, layout := range tier.Divide(t, []string{"pipeline={schedule: 2bw, stages: 2}", "pipeline.stages=1"}, tier.First[string](1)) {
		dir := t.TempDir()
		run := func(name string, saves *atomic.Int64, onStep func(train.Progress)) train.Result {
			c := traintest.Demo(t, dir, "run.dir="+filepath.Join(dir, name), "train.steps=20", "train.save_every=0", "train.eval_every=0",
				"train.keep=0", layout)
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{OnStep: onStep})
			o.Saves = saves
			res, err := train.Run(context.Background(), c, o)
			require.NoError(t, err)
			assert.False(t, res.Interrupted)
			return res
		}
		var saves atomic.Int64
		saves.Store(5) // for runs before
		whole := run("whole", nil, nil)
		asked := run("asked", &saves, func(p train.Progress) {
			if p.Step == 3 || p.Step == 4 {
				saves.Add(1)
			}
		})
		kept, err := filepath.Glob(filepath.Join(asked.Dir, "checkpoints", "step-*"))
		require.NoError(t, err)
		assert.GreaterOrEqual(t, len(kept), 2, "%v", kept)
		assert.NoDirExists(t, filepath.Join(asked.Dir, "checkpoints", "step-1"), "what was asked of runs before does not count")
		assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, asked.Checkpoint), layout)
		assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, asked.Dir), layout)
	}
}
