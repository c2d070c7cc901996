package equaltest

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eachOptimizer runs a test with every optimizer, at rates at which the demo learns.
func eachOptimizer(t *testing.T, f func(t *testing.T, overrides ...string)) {
	rates := map[string]string{"lion": "0.01", "adan": "0.03", "mars": "0.03", "soap": "0.03", "adamw": "0.03"}
	// The default, and one whose updates are several programs.
	core := func(_ int, name string) bool { return name == "muon" || name == "soap" }
	for _, name := range tier.Divide(t, optim.OptimizerNames(), core) {
		t.Run(name, func(t *testing.T) {
			overrides := []string{"optimizer.name=" + name, "optimizer.soap.precondition_frequency=2"}
			if rate := rates[name]; rate != "" {
				overrides = append(overrides, "optimizer.lr="+rate)
			}
			f(t, overrides...)
		})
	}
}

func TestEveryOptimizerLearns(t *testing.T) {
	eachOptimizer(t, func(t *testing.T, overrides ...string) {
		c := traintest.Demo(t, t.TempDir(), append(overrides, "train={steps: 30, eval_every: 30, save_every: 0}")...)
		res, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		assert.Less(t, *res.ValLoss, 4.5, "it began at ln 256 = 5.5")
	})
}

// The cut of the model changes no bit of any optimizer's result.
func TestEveryOptimizerIsTheSameOnStages(t *testing.T) {
	eachOptimizer(t, func(t *testing.T, overrides ...string) {
		common := append(overrides, "pipeline.delay=1", "pipeline.stale_microbatches=2", "pipeline.correction=error_feedback")
		one, got := weightsOf(t, common...), weightsOf(t, append(common, "pipeline.stages=3")...)
		for file := range one {
			assert.True(t, one[file] == got[file], "%s: %v", file, common)
		}
	})
}

// A run that is stopped after any step and resumed gives the same bits, also at steps whose update is another program.
func TestEveryOptimizerResumes(t *testing.T) {
	eachOptimizer(t, func(t *testing.T, overrides ...string) {
		dir := t.TempDir()
		whole := traintest.Demo(t, dir, append(overrides, "train.save_every=1", "run.dir="+filepath.Join(dir, "whole"))...)
		_, err := train.Run(context.Background(), whole, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		for _, stop := range []int{1, 3} {
			c := traintest.Demo(t, dir, append(overrides, "run.dir="+filepath.Join(dir, fmt.Sprint("stop", stop)))...)
			ctx, cancel := context.WithCancel(context.Background())
			n := &runtest.Notes{OnStep: func(p train.Progress) {
				if p.Step == stop {
					cancel()
				}
			}}
			res, err := train.Run(ctx, c, runtest.Options(&traintest.Reference{}, n))
			require.NoError(t, err)
			require.True(t, res.Interrupted)
			assert.Equal(t, traintest.Files(t, whole.Run.Dir+fmt.Sprint("/checkpoints/step-", res.Step)),
				traintest.Files(t, res.Checkpoint))
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			o.Resume = true
			_, err = train.Run(context.Background(), c, o)
			require.NoError(t, err)
			assert.Equal(t, traintest.Files(t, whole.Run.Dir+"/checkpoints/step-6"), traintest.Files(t, c.Run.Dir+"/checkpoints/step-6"),
				"stopped at %d", stop)
		}
	})
}
