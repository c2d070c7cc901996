package train_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// independent is the config of a run of two replicas that train on their own.
func independent(t *testing.T, dir string, overrides ...string) config.Config {
	return traintest.Demo(t, dir, append([]string{"train={steps: 9, batch_size: 12, microbatches: 12, eval_every: 3, save_every: 3}",
		"pipeline.replicas=2", "pipeline.local_steps=4", "pipeline.outer={wire: int4, late: 2}"}, overrides...)...)
}

// tensorsOf reads all tensors of a checkpoint's state.
func tensorsOf(t *testing.T, res train.Result) map[string][]float32 {
	t.Helper()
	c, _, err := checkpoint.Latest(res.Dir)
	require.NoError(t, err)
	r, err := c.Optimizer()
	require.NoError(t, err)
	defer r.Close()
	all := map[string][]float32{}
	for _, x := range r.Tensors() {
		if x.DType == "F32" {
			all[x.Name], err = r.Float32(x.Name)
			require.NoError(t, err)
		}
	}
	return all
}

// The validation loss, metrics and evaluations of the checkpoint are of the outer weights; metrics and the trace show
// each replica and each exchange.
func TestReplicasLeaveTheirMarks(t *testing.T) {
	c := independent(t, t.TempDir())
	notes := &runtest.Notes{}
	res, err := train.Run(t.Context(), c, runtest.Options(&traintest.Reference{}, notes))
	require.NoError(t, err)
	ev, err := inference.Evaluate(t.Context(), inference.EvalOptions{From: res.Dir, BatchSize: 1,
		Target: inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}})
	require.NoError(t, err)
	assert.InDelta(t, ev.Loss, *res.ValLoss, 1e-6)
	assert.Equal(t, "replica 1 stage 0", notes.Started.Ranks[1].Name)
	records, err := metrics.Read(filepath.Join(res.Dir, "metrics.jsonl"))
	require.NoError(t, err)
	require.Len(t, records, 9)
	for _, r := range records {
		assert.NotEqual(t, r.Values["replicas.0/loss"], r.Values["replicas.1/loss"], "each has its share of the data")
		assert.InDelta(t, r.Values["loss"], (r.Values["replicas.0/loss"]+r.Values["replicas.1/loss"])/2, 1e-6)
	}
	text, err := os.ReadFile(filepath.Join(res.Dir, "trace.json"))
	require.NoError(t, err)
	for _, part := range []string{`"exchange layers.0"`, `"cat":"exchange"`, `"lands":5`, `"replica 1 stage 0"`} {
		assert.Contains(t, string(text), part)
	}
}

// One replica takes its microbatches of each batch: with SGD and a plain average after each step, replicas compute what
// replicas that average gradients do.
func TestAveragesOfEachStepAreSynchronousReplicas(t *testing.T) {
	sgd := []string{"optimizer={name: sgd, lr: 0.1, momentum: 0, weight_decay: 0}", "train.grad_clip=0", "pipeline.outer={lr: 1, momentum: 0}"}
	var losses [2]float64
	for i, steps := range []string{"0", "1"} {
		res, err := train.Run(t.Context(), independent(t, t.TempDir(), append(sgd, "pipeline.local_steps="+steps)...),
			runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		losses[i] = *res.ValLoss
	}
	assert.InDelta(t, losses[0], losses[1], 1e-5)
	assert.Less(t, losses[1], 5.3)
}

// A run goes on with more or fewer replicas: new ones begin at the base with a fresh optimizer.
func TestResumeWithOtherReplicas(t *testing.T) {
	for replicas, note := range map[string]string{
		"3": "the checkpoint has 2, the config 3: the last 1 begin at the shared weights with a fresh optimizer",
		"1": "the checkpoint has 2, the config 1: the last 1 end",
	} {
		dir := t.TempDir()
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.StopAfter = 5
		_, err := train.Run(t.Context(), independent(t, dir), o)
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(dir, "run", "checkpoints", "step-5", "state.json"))
		require.NoError(t, err)
		var state struct {
			Replicas struct {
				Count   int
				Flights []struct{ Fragment, Lands int }
			}
		}
		require.NoError(t, json.Unmarshal(text, &state))
		assert.Equal(t, 2, state.Replicas.Count)
		assert.NotEmpty(t, state.Replicas.Flights, "two steps late")
		notes := &runtest.Notes{}
		o = runtest.Options(&traintest.Reference{}, notes)
		o.Resume = true
		res, err := train.Run(t.Context(), independent(t, dir, "pipeline.replicas="+replicas, "pipeline.outer.lr=0.5"), o)
		require.NoError(t, err)
		assert.Contains(t, strings.Join(notes.Text, "\n"), note)
		assert.Contains(t, strings.Join(notes.Text, "\n"), "pipeline.outer.lr")
		assert.Equal(t, 9, res.Step)
		state1, more := tensorsOf(t, res)["replicas/0/weights/model.norm.weight"], tensorsOf(t, res)["replicas/2/weights/model.norm.weight"]
		assert.NotEmpty(t, state1)
		assert.Equal(t, replicas == "3", len(more) > 0)
		if len(more) > 0 {
			assert.Equal(t, state1, more, "all replicas end at the base")
		}
	}
}

// A resumed run with shorter periods sends fragments whose exchanges have not landed: they land first.
func TestResumeWithShorterPeriods(t *testing.T) {
	dir := t.TempDir()
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.StopAfter = 4
	_, err := train.Run(t.Context(), independent(t, dir, "pipeline.outer.late=4"), o)
	require.NoError(t, err)
	o.StopAfter, o.Resume = 0, true
	res, err := train.Run(t.Context(), independent(t, dir, "pipeline.local_steps=1", "pipeline.outer.late=0"), o)
	require.NoError(t, err)
	all := tensorsOf(t, res)
	assert.Equal(t, all["replicas/0/weights/model.norm.weight"], all["replicas/1/weights/model.norm.weight"])
	assert.Equal(t, all["outer/base/model.norm.weight"], all["replicas/1/weights/model.norm.weight"])
	assert.Less(t, *res.ValLoss, 5.3)
}

// Replicas that average gradients do not become replicas that train on their own, or the other way around.
func TestResumeRefusesOtherLocalSteps(t *testing.T) {
	for _, keys := range [][2]string{{"pipeline.local_steps=4", "pipeline.local_steps=0"}, {"pipeline.local_steps=0", "pipeline.local_steps=4"}} {
		dir := t.TempDir()
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.StopAfter = 3
		_, err := train.Run(t.Context(), independent(t, dir, keys[0], "pipeline.outer.late=0"), o)
		require.NoError(t, err)
		o.StopAfter, o.Resume = 0, true
		_, err = train.Run(t.Context(), independent(t, dir, keys[1], "pipeline.outer.late=0"), o)
		assert.ErrorContains(t, err, "pipeline.local_steps: the checkpoint has")
	}
}

// Keys that a run does not use are no other run.
func TestResumeIgnoresExchangesThatThereAreNot(t *testing.T) {
	dir, none := t.TempDir(), "pipeline={local_steps: 0, outer: {late: 0, lr: 0.7}}"
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.StopAfter = 3
	_, err := train.Run(t.Context(), independent(t, dir, none), o)
	require.NoError(t, err)
	o.StopAfter, o.Resume = 0, true
	_, err = train.Run(t.Context(), independent(t, dir, none, "pipeline.outer.lr=0.5", "pipeline.outer.wire=int2"), o)
	assert.NoError(t, err)
}
