package inference

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// version reads all weights of one version of a model.
func version(t *testing.T, path string, w Version) map[string][]float32 {
	t.Helper()
	src, err := OpenModel(path, "")
	require.NoError(t, err)
	defer src.Close()
	require.NoError(t, src.Choose(w, train.Silent{}.Note))
	all := map[string][]float32{}
	for _, p := range src.Model.Parameters() {
		all[p.Name], err = src.weights.Initial(p)
		require.NoError(t, err)
	}
	return all
}

// everyStep trains a few steps on the reference executor and keeps the checkpoint of each.
func everyStep(t *testing.T, overrides ...string) string {
	t.Helper()
	c := traintest.Demo(t, t.TempDir(), append([]string{"train={steps: 4, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 1}"},
		overrides...)...)
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	return c.Run.Dir
}

// Where nothing is anticipated, y at a step is what x is at the next.
func TestSettledWeightsAreThoseOfTheNextStep(t *testing.T) {
	for _, correction := range []string{"none", "dc_asgd"} {
		run := everyStep(t, "pipeline.delay=1", "pipeline.correction="+correction)
		for step := 1; step < 4; step++ {
			assert.Equal(t, version(t, traintest.StepDir(run, step+1), VersionX), version(t, traintest.StepDir(run, step), VersionY),
				correction)
			assert.NotEqual(t, version(t, traintest.StepDir(run, step), VersionX), version(t, traintest.StepDir(run, step), VersionY))
		}
	}
}

// Error feedback keeps u_t, times the share of stale microbatches: y_{t+1} = y_t − u_t, from y_0 = x_0 on, whatever x
// anticipates.
func TestSettledWeightsHoldEveryUpdateOnce(t *testing.T) {
	initial := everyStep(t, "train.steps=0", "init.seed=3")
	for stale, share := range map[string]float32{"all": 1, "1": 0.5} {
		run := everyStep(t, "pipeline.delay=1", "pipeline.stale_microbatches="+stale, "pipeline.error_feedback=true",
			"optimizer.weight_decay=0", "init.seed=3")
		requireSettled(t, initial, run, share)
	}
}

// requireSettled checks the weights y of each step. share is that of the stale microbatches.
func requireSettled(t *testing.T, initial, run string, share float32) {
	t.Helper()
	y := version(t, initial, VersionX)
	for step := 1; step <= 4; step++ {
		r, err := safetensors.Open(filepath.Join(traintest.StepDir(run, step), "optimizer.safetensors"))
		require.NoError(t, err)
		got, next := version(t, traintest.StepDir(run, step), VersionY), version(t, traintest.StepDir(run, step), VersionX)
		for name := range y {
			u, err := r.Float32("optim/last_update/" + name)
			require.NoError(t, err)
			for i := range u {
				require.InDelta(t, y[name][i]-u[i]/share, got[name][i], 1e-6, "step %d: %s", step, name)
			}
			assert.NotEqual(t, next[name], got[name])
		}
		require.NoError(t, r.Close())
		y = got
	}
}

func TestWithoutDelayBothWeightsAreTheSame(t *testing.T) {
	run := everyStep(t)
	assert.Equal(t, version(t, run, VersionX), version(t, run, VersionY))
	n := &runtest.Notes{}
	ev := func(w Version) Evaluation {
		e, err := Evaluate(context.Background(), EvalOptions{From: run, Weights: w, BatchSize: 2, Target: onReference, Note: n.Note})
		require.NoError(t, err)
		return e
	}
	x, y := ev(VersionX), ev(VersionY)
	assert.Equal(t, x.Loss, y.Loss)
	assert.Equal(t, VersionY, y.Weights)
	assert.Equal(t, []string{traintest.StepDir(run, 4) + " is of a run without delay: its weights x and y are the same"}, n.Text)
}

func TestWeightsThatAreNewestAlready(t *testing.T) {
	run := everyStep(t, "pipeline.delay=1", "pipeline.stale_microbatches=1")
	src, err := OpenModel(run, "")
	require.NoError(t, err)
	defer src.Close()
	n := &runtest.Notes{}
	require.NoError(t, src.Choose(VersionY, n.Note))
	assert.Equal(t, []string{src.Dir + " is of a run that evaluates the newest weights: its weights x and y are the same"}, n.Text)
	assert.Equal(t, version(t, run, VersionX), version(t, run, VersionY))
}

func TestWeightsThatCannotBeChosen(t *testing.T) {
	run := everyStep(t, "pipeline.delay=1", "pipeline.error_feedback=true")
	plain := filepath.Join(t.TempDir(), "plain")
	_, err := Export(context.Background(), ExportOptions{From: run, Out: plain})
	require.NoError(t, err)
	choose := func(path string, w Version) error {
		src, err := OpenModel(path, "")
		require.NoError(t, err)
		defer src.Close()
		err = src.Choose(w, train.Silent{}.Note)
		var user *usererror.Error
		require.ErrorAs(t, err, &user)
		return err
	}
	assert.ErrorContains(t, choose(plain, VersionY), "weights: found y, but "+plain+" is no checkpoint of a run")
	assert.ErrorContains(t, choose(run, "z"), `weights: found "z", expected x or y`)

	dir := traintest.StepDir(run, 4)
	for _, lost := range []string{"pending/model.norm.weight", "optim/last_update/model.norm.weight"} {
		path := filepath.Join(dir, "optimizer.safetensors")
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		traintest.Alter(t, dir, "optimizer.safetensors", func(text []byte) []byte { return traintest.Without(t, path, lost) })
		assert.ErrorContains(t, choose(run, VersionY), dir+`: tensor "`+lost+`" is missing, expected f32[8]`)
		traintest.Alter(t, dir, "optimizer.safetensors", func([]byte) []byte { return before })
	}
	assert.NotEmpty(t, version(t, run, VersionY))
}
