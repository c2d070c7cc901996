package train

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// version reads all weights of one version of a model.
func version(t *testing.T, path string, w Weights) map[string][]float32 {
	t.Helper()
	src, err := OpenModel(path, "")
	require.NoError(t, err)
	defer src.Close()
	require.NoError(t, src.Choose(w, Silent{}.Note))
	all := map[string][]float32{}
	for _, p := range src.Model.Parameters() {
		all[p.Name], err = src.weights.initial(p)
		require.NoError(t, err)
	}
	return all
}

// stepDir is a run's checkpoint of a step.
func stepDir(run string, step int) string {
	return filepath.Join(run, "checkpoints", fmt.Sprint("step-", step))
}

// everyStep trains a few steps on the reference executor and keeps the checkpoint of each.
func everyStep(t *testing.T, overrides ...string) string {
	t.Helper()
	c := demo(t, t.TempDir(), append([]string{"train={steps: 4, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 1}"}, overrides...)...)
	_, err := Run(context.Background(), c, options(&reference{}, &notes{}))
	require.NoError(t, err)
	return c.Run.Dir
}

// Where nothing is anticipated, y at a step is what x is at the next.
func TestSettledWeightsAreThoseOfTheNextStep(t *testing.T) {
	for _, correction := range []string{"none", "dc_asgd"} {
		run := everyStep(t, "pipeline.delay=1", "pipeline.correction="+correction)
		for step := 1; step < 4; step++ {
			assert.Equal(t, version(t, stepDir(run, step+1), WeightsX), version(t, stepDir(run, step), WeightsY), correction)
			assert.NotEqual(t, version(t, stepDir(run, step), WeightsX), version(t, stepDir(run, step), WeightsY))
		}
	}
}

// Error feedback keeps u_t: y_{t+1} = y_t − u_t, from y_0 = x_0 on, whatever x anticipates.
func TestSettledWeightsHoldEveryUpdateOnce(t *testing.T) {
	run := everyStep(t, "pipeline.delay=1", "pipeline.error_feedback=true", "optimizer.weight_decay=0", "init.seed=3")
	initial := everyStep(t, "train.steps=0", "init.seed=3")
	y := version(t, initial, WeightsX)
	for step := 1; step <= 4; step++ {
		r, err := safetensors.Open(filepath.Join(stepDir(run, step), "optimizer.safetensors"))
		require.NoError(t, err)
		got, next := version(t, stepDir(run, step), WeightsY), version(t, stepDir(run, step), WeightsX)
		for name := range y {
			u, err := r.Float32("optim/last_update/" + name)
			require.NoError(t, err)
			for i := range u {
				require.InDelta(t, y[name][i]-u[i], got[name][i], 1e-6, "step %d: %s", step, name)
			}
			assert.NotEqual(t, next[name], got[name])
		}
		require.NoError(t, r.Close())
		y = got
	}
}

func TestWithoutDelayBothWeightsAreTheSame(t *testing.T) {
	run := everyStep(t)
	assert.Equal(t, version(t, run, WeightsX), version(t, run, WeightsY))
	n := &notes{}
	ev := func(w Weights) Evaluation {
		e, err := Evaluate(context.Background(), EvalOptions{From: run, Weights: w, BatchSize: 2, OpenDevice: openNull, Execute: (&reference{}).execute, Note: n.Note})
		require.NoError(t, err)
		return e
	}
	x, y := ev(WeightsX), ev(WeightsY)
	assert.Equal(t, x.Loss, y.Loss)
	assert.Equal(t, WeightsY, y.Weights)
	assert.Equal(t, []string{stepDir(run, 4) + " is of a run without delay: its weights x and y are the same"}, n.text)
}

func TestWeightsThatCannotBeChosen(t *testing.T) {
	run := everyStep(t, "pipeline.delay=1", "pipeline.error_feedback=true")
	plain := filepath.Join(t.TempDir(), "plain")
	_, err := Export(context.Background(), ExportOptions{From: run, Out: plain})
	require.NoError(t, err)
	choose := func(path string, w Weights) error {
		src, err := OpenModel(path, "")
		require.NoError(t, err)
		defer src.Close()
		err = src.Choose(w, Silent{}.Note)
		var user *usererror.Error
		require.ErrorAs(t, err, &user)
		return err
	}
	assert.ErrorContains(t, choose(plain, WeightsY), "weights: found y, but "+plain+" is no checkpoint of a run")
	assert.ErrorContains(t, choose(run, "z"), `weights: found "z", expected x or y`)

	dir := stepDir(run, 4)
	for _, lost := range []string{"pending/model.norm.weight", "optim/last_update/model.norm.weight"} {
		path := filepath.Join(dir, "optimizer.safetensors")
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		alter(t, dir, "optimizer.safetensors", func(text []byte) []byte { return without(t, path, lost) })
		assert.ErrorContains(t, choose(run, WeightsY), dir+`: tensor "`+lost+`" is missing, expected f32[8]`)
		alter(t, dir, "optimizer.safetensors", func([]byte) []byte { return before })
	}
	assert.NotEmpty(t, version(t, run, WeightsY))
}

// without is a safetensors file without one of its tensors.
func without(t *testing.T, path, name string) []byte {
	t.Helper()
	r, err := safetensors.Open(path)
	require.NoError(t, err)
	defer r.Close()
	var entries []safetensors.Entry
	for _, x := range r.Tensors() {
		b, err := r.Bytes(x.Name)
		require.NoError(t, err)
		if x.Name != name {
			entries = append(entries, safetensors.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: b})
		}
	}
	require.Len(t, entries, len(r.Tensors())-1)
	var w bytes.Buffer
	require.NoError(t, safetensors.Encode(&w, entries))
	return w.Bytes()
}

// alter rewrites a file of a checkpoint as if it had been saved so.
func alter(t *testing.T, dir, name string, change func([]byte) []byte) {
	t.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return b
	}
	text := change(read(name))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o666))
	var manifest map[string]any
	require.NoError(t, json.Unmarshal(read("manifest.json"), &manifest))
	for _, f := range manifest["files"].([]any) {
		if f := f.(map[string]any); f["name"] == name {
			sum := sha256.Sum256(text)
			f["size"], f["sha256"] = len(text), hex.EncodeToString(sum[:])
		}
	}
	out, err := json.Marshal(manifest)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.json"), out, 0o666))
}
