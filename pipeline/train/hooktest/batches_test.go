package hooktest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run with batch hooks gives the same bits when it is interrupted anywhere and resumed, with any number of instances.
func TestBatchHooksResume(t *testing.T) {
	all := traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch", traintest.Mixer(t, false)+", hook: map_batch",
		traintest.Weigher(t)+", hook: token_weights", traintest.ScaledLoss(t)+", hook: build_loss")
	for _, more := range tier.Some(t, [][]string{{"pipeline.stages=2", "pipeline.delay=1", "pipeline.error_feedback=true"}, nil,
		independent}, tier.First[[]string](1)) {
		dir := t.TempDir()
		configure := func(name string) config.Config {
			return traintest.Demo(t, dir, append([]string{all, "train.save_every=2", "run.dir=" + filepath.Join(dir, name)}, more...)...)
		}
		run := func(name string, instances, stop int) (train.Result, error) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{OnStep: func(p train.Progress) {
				if p.Step == stop {
					cancel()
				}
			}})
			o.Resume, o.Hooks.Instances = true, instances
			return train.Run(ctx, configure(name), o)
		}
		whole, err := run("whole", 1, 0)
		require.NoError(t, err)
		same := func(name string, got train.Result) {
			assert.Equal(t, 6, got.Step, name)
			for file, bits := range traintest.Files(t, whole.Checkpoint) {
				assert.True(t, bits == traintest.Files(t, got.Checkpoint)[file], "%s: %s", name, file)
			}
			assert.Equal(t, traintest.Measurements(t, configure("whole").Run.Dir), traintest.Measurements(t, configure(name).Run.Dir), name)
		}
		for _, n := range []int{2, 8} {
			got, err := run(fmt.Sprint("on ", n), n, 0)
			require.NoError(t, err)
			same(fmt.Sprint("on ", n), got)
		}
		for _, stop := range tier.Some(t, []int{3, 5, 1, 2, 4}, tier.First[int](2)) {
			name := fmt.Sprint("stopped at ", stop)
			_, err := run(name, 8, stop)
			require.NoError(t, err)
			got, err := run(name, 2, 0)
			require.NoError(t, err)
			same(name, got)
		}
		// As if the run had been killed behind a checkpoint.
		name := "killed"
		_, err = run(name, 8, 0)
		require.NoError(t, err)
		for _, step := range []string{"step-4", "step-6"} {
			require.NoError(t, os.RemoveAll(filepath.Join(configure(name).Run.Dir, checkpoint.Folder, step)))
		}
		got, err := run(name, 8, 0)
		require.NoError(t, err)
		same(name, got)
		assertNoFeeders(t)
	}
}

// independent makes replicas train on their own.
var independent = []string{"pipeline.replicas=2", "pipeline.local_steps=2", "pipeline.outer={wire: int4, late: 1}"}

// assertNoFeeders finds goroutines that compute batches for runs that have ended.
func assertNoFeeders(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	assert.NotContains(t, string(stacks), "hooks.(*Feeder)")
}

// Without the hooks the bits differ. So TestBatchHooksResume compares results that depend on the hooks.
func TestBatchHooksChangeTraining(t *testing.T) {
	learned := map[string]string{}
	for _, hooks := range []string{"hooks=[]", traintest.WithHooks(traintest.Mixer(t, false) + ", hook: map_batch"),
		traintest.WithHooks(traintest.Mixer(t, true) + ", hook: map_batch"),
		traintest.WithHooks(traintest.Weigher(t) + ", hook: token_weights"), traintest.WithHooks(traintest.ScaledLoss(t) +
			", hook: build_loss")} {
		res, err := train.Run(context.Background(), traintest.Demo(t, t.TempDir(), "train.steps=3", hooks),
			runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		require.NoError(t, err)
		bits := traintest.Files(t, res.Checkpoint)["model.safetensors"]
		assert.Empty(t, learned[bits], "%s", hooks)
		learned[bits] = hooks
	}
}

// lossOfFirst is the loss of the first batch.
func lossOfFirst(t *testing.T, overrides ...string) float64 {
	t.Helper()
	n := &runtest.Notes{}
	_, err := train.Run(context.Background(), traintest.Demo(t, t.TempDir(), append([]string{"train.steps=1", "train.eval_every=0"},
		overrides...)...), runtest.Options(&traintest.Reference{}, n))
	require.NoError(t, err)
	return n.Steps[0].Loss
}

// weighing is the override that adds a module which copies these weights into each batch.
func weighing(t *testing.T, weights []float32) string {
	var b []byte
	for _, x := range weights {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return traintest.WithHooks(traintest.Guest(t, "weights.wasm", string(b), false,
		traintest.Hook("token_weights", traintest.Array(2), w.Const(traintest.TextAddress), w.Const(int32(len(b))), w.MemoryCopy(),
			w.Const(0))) + ", hook: token_weights")
}

// The loss of a batch is Σ weight·loss / Σ weight over its tokens, across microbatches and replicas. The scale of the
// weights does not matter.
func TestWeightsOfTokens(t *testing.T) {
	const tokens = 4 * 8
	plain := lossOfFirst(t)
	each, mean := make([]float64, tokens), 0.0
	for i := range tokens {
		one := make([]float32, tokens)
		one[i] = 7
		each[i] = lossOfFirst(t, weighing(t, one))
		mean += each[i] / tokens
	}
	assert.InDelta(t, plain, mean, 1e-6)
	ones, some := make([]float32, tokens), make([]float32, tokens)
	sum, total := 0.0, 0.0
	for i := range tokens {
		ones[i] = 0.3
		some[i] = float32(i*i%11) / 4
		sum, total = sum+float64(some[i])*each[i], total+float64(some[i])
	}
	assert.Equal(t, plain, lossOfFirst(t, weighing(t, ones)), "all alike are all 1, to the last bit")
	for _, layout := range [][]string{nil, {"pipeline.stages=2"}, {"pipeline.replicas=2"}, {"train.microbatches=4"}} {
		assert.InDelta(t, sum/total, lossOfFirst(t, append(layout, weighing(t, some))...), 1e-6, "%v", layout)
	}
}

// A loss reads the rows of aligned tensors, the scalars and the weights of its own batch.
func TestLossInputs(t *testing.T) {
	dir := t.TempDir()
	teacher := traintest.Positions(t, dir, len(traintest.TrainText(t, traintest.Demo(t, dir))))
	run := func(name string, overrides ...string) (losses []float64) {
		n := &runtest.Notes{}
		c := traintest.Demo(t, dir, append([]string{"train.eval_every=0", "data.shuffle=false", "run.dir=" + filepath.Join(dir, name)},
			overrides...)...)
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, n))
		require.NoError(t, err)
		for _, p := range n.Steps {
			losses = append(losses, p.Loss)
		}
		return losses
	}
	for step, loss := range run("aligned", "data.aligned=["+teacher+"]",
		traintest.WithHooks(traintest.InputLoss(t, "teacher", traintest.CallInput))) {
		assert.InDelta(t, float64(step*32)+15.5, loss, 1e-4, "the mean of positions 32·step to 32·step+31")
	}
	for step, loss := range run("scalars", traintest.WithHooks(traintest.InputLoss(t, "beta", traintest.CallScalar))) {
		assert.InDelta(t, step+1, loss, 1e-6)
	}
	for _, loss := range run("weights", traintest.WithHooks(traintest.InputLoss(t, "weights", traintest.CallInput),
		traintest.Weigher(t)+", hook: token_weights")) {
		assert.InDelta(t, 1, loss, 1e-6, "the mean of weights")
	}
	for _, loss := range run("ones", traintest.WithHooks(traintest.InputLoss(t, "weights", traintest.CallInput))) {
		assert.Equal(t, 1., loss, "where no hook sets any")
	}
}

// failingOn is a module that runs the given code for a batch whose first token is '#'. A stateful one writes its count
// of batches to the first row of the first aligned tensor.
func failingOn(t *testing.T, remembers bool, does ...any) string {
	body := w.Seq(traintest.Array(0), w.Load(0), w.Const('#'), w.I32Eq, w.If(w.Empty, does...))
	if remembers {
		body = w.Seq(traintest.Count(), body, traintest.Array(5), w.GGet(1), 0xb3, w.StoreF32(0))
	}
	return traintest.Guest(t, "failing.wasm", "not this one", remembers, traintest.Hook("map_batch", body, w.Const(0)))
}

// marked is a text in which the given batches begin with '#'.
func marked(t *testing.T, dir string, batches ...int) string {
	t.Helper()
	text := []byte(strings.Repeat("the cat sat on a mat and ", 60))
	for _, b := range batches {
		text[32*b] = '#'
	}
	path := filepath.Join(dir, "marked.txt")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	return path
}

var failures = map[string][]any{
	"failed: not this one": {traintest.Text("not this one", "not this one"), w.Call(traintest.CallFail), w.Const(0), w.Return},
	"trap: ":               {w.Unreachable},
	"deadline exceeded":    {w.Loop(w.Empty, w.Br(0))},
	"failed: tokens[0,5] is 256, expected a token below 256": {traintest.Array(0), w.Const(256), w.Store(20), w.Const(0), w.Return},
}

func TestFailingBatchStopsRun(t *testing.T) {
	for want, does := range failures {
		for i, batch := range []int{0, 3, 3} {
			dir := t.TempDir()
			overrides := []string{"data.shuffle=false", "data.train=[" + marked(t, dir, batch) + "]",
				traintest.WithHooks(failingOn(t, false, does...) + ", hook: map_batch, seconds: 0.1")}
			if i == 2 {
				overrides = append(overrides, independent...)
			}
			c := traintest.Demo(t, dir, overrides...)
			_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
			var user *usererror.Error
			require.ErrorAs(t, err, &user, want)
			assert.ErrorContains(t, err, fmt.Sprintf("failing.wasm: map_batch: batch %d: %s", batch, want))
			if batch == 0 {
				assert.NoDirExists(t, c.Run.Dir, "nothing is left of a run that did not begin")
			} else {
				assert.ErrorContains(t, err, "; the checkpoint of step 3 is kept")
				o := runtest.Options(&traintest.Reference{}, &runtest.Notes{}) // and can be gone on from, if only up to there
				o.Resume = true
				_, err = train.Run(context.Background(), c, o)
				assert.ErrorContains(t, err, fmt.Sprintf("map_batch: batch %d: ", batch))
			}
			assertNoFeeders(t)
		}
	}
}

// The batches after a skipped one move up, whatever the failure was and wherever the run was interrupted. The state of
// a module does not contain the skipped batch. The places of interruptions are shared out, so that each comes with each
// failure and with each kind of module.
func TestFailingBatchesAreSkipped(t *testing.T) {
	for i, remembers := range []bool{false, true} {
		for k, want := range slices.Sorted(maps.Keys(failures)) {
			does, stops := failures[want], [][]int{{3, 1, 5}, {2, 4}}[(i+k)%2]
			dir := t.TempDir()
			hashes := marked(t, dir, 0, 3, 4, 7)
			configure := func(name string) config.Config {
				return traintest.Demo(t, dir, "data.shuffle=false", "train.eval_every=0", "data.train=["+hashes+"]",
					"run.dir="+filepath.Join(dir, name), "data.aligned=["+traintest.Positions(t, dir, 1500)+"]",
					traintest.WithHooks(failingOn(t, remembers, does...)+", hook: map_batch, on_error: skip, seconds: 0.1",
						traintest.InputLoss(t, "teacher", traintest.CallInput)))
			}
			run := func(name string, stop, instances int) (*runtest.Notes, train.Result) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				n := &runtest.Notes{}
				n.OnStep = func(p train.Progress) {
					if p.Step == stop {
						cancel()
					}
				}
				o := runtest.Options(&traintest.Reference{}, n)
				o.Resume, o.Hooks.Instances = true, instances
				res, err := train.Run(ctx, configure(name), o)
				require.NoError(t, err)
				return n, res
			}
			n, whole := run("whole", 0, 1)
			out := strings.Join(n.Text, "\n")
			for _, batch := range []int{0, 3, 4, 7} {
				assert.Contains(t, out, fmt.Sprintf("batch %d is skipped: ", batch))
			}
			assert.Contains(t, out, want)
			for step, batch := range []int{1, 2, 5, 6, 8, 9} {
				mean := float64(32*batch) + 15.5
				if remembers {
					mean += float64(step+1-32*batch) / 32
				}
				assert.InDelta(t, mean, n.Steps[step].Loss, 1e-4, "%s: step %d", want, step)
			}
			var s struct {
				Omitted int `json:"left_out"`
				Data    struct {
					Step int `json:"step"`
				} `json:"data"`
			}
			text, err := os.ReadFile(filepath.Join(whole.Checkpoint, "state.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &s))
			assert.EqualValues(t, 4, s.Omitted)
			assert.EqualValues(t, 10, s.Data.Step)
			for _, stop := range tier.Some(t, stops, tier.First[int](1)) {
				name := fmt.Sprint("stopped at ", stop)
				run(name, stop, 8)
				_, got := run(name, 0, 2)
				assert.True(t, traintest.Files(t, whole.Checkpoint)["model.safetensors"] == traintest.Files(t,
					got.Checkpoint)["model.safetensors"], name)
				assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, got.Dir), name)
			}
		}
	}
	assertNoFeeders(t)
}

// A run that ends leaves no goroutine behind: after a failure of a device, and after Ctrl-C during a slow call of a
// module.
func TestRunLeavesNoGoroutines(t *testing.T) {
	_, err := train.Run(context.Background(), traintest.Demo(t, t.TempDir(),
		traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch")),
		runtest.Options(&traintest.Reference{Fault: traintest.FailAt(9)}, &runtest.Notes{}))
	assert.Error(t, err)
	assertNoFeeders(t)
	spins := traintest.Guest(t, "spins.wasm", "", false, traintest.Hook("map_batch", w.Loop(w.Empty, w.Br(0)), w.Const(0)))
	ctx, cancel := context.WithCancel(context.Background())
	began := time.Now()
	time.AfterFunc(100*time.Millisecond, cancel)
	c := traintest.Demo(t, t.TempDir(), traintest.WithHooks(spins+", hook: map_batch"))
	_, err = train.Run(ctx, c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Less(t, time.Since(began), 25*time.Second, "a call may take 30 seconds, but a canceled run does not wait for it")
	assert.NoDirExists(t, c.Run.Dir)
	assertNoFeeders(t)
}

// More than ten skipped batches in a row end the run.
func TestTooManySkippedBatches(t *testing.T) {
	dir := t.TempDir()
	batches := []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	run := func(name string, batches []int) error {
		c := traintest.Demo(t, dir, "data.shuffle=false", "data.train=["+marked(t, dir, batches...)+"]",
			"run.dir="+filepath.Join(dir, name),
			traintest.WithHooks(failingOn(t, false, w.Unreachable)+", hook: map_batch, on_error: skip"))
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		return err
	}
	assert.NoError(t, run("ten", batches[:10]))
	err := run("eleven", batches)
	assert.ErrorContains(t, err, "10 batches in a row were skipped, and the next one fails too: ")
	assert.ErrorContains(t, err, "failing.wasm: map_batch: batch 13: trap: ")
	assertNoFeeders(t)
}

// The references of hooks and data to each other are checked before anything is written.
func TestLossAndTensorErrors(t *testing.T) {
	dir := t.TempDir()
	one := traintest.Guest(t, "one.wasm", traintest.LossText+" sum", false, traintest.Hook("build_loss",
		traintest.Text(traintest.LossText, "logits"), w.Call(traintest.CallInput), w.Set(2),
		traintest.Apply(traintest.LossText+" sum", "sum", 1, "{}"))) + ", hook: build_loss"
	n := len(traintest.TrainText(t, traintest.Demo(t, dir)))
	tensor := func(name string) string {
		path := filepath.Join(t.TempDir(), name+".safetensors")
		require.NoError(t, safetensors.Write(path,
			[]safetensors.Entry{{Name: name, DType: safetensors.I32, Shape: []int{n}, Data: make([]byte, 4*n)}}))
		return "data.aligned=[" + path + "]"
	}
	for want, overrides := range map[string][]string{
		`one.wasm: build_loss: the loss is one number, f32[], and does not use "weights", which map_batch, token_weights, data.pack or data.document_mask sets: expected f32[16]`: {
			traintest.WithHooks(one, traintest.Weigher(t)+", hook: token_weights")},
		`data.aligned: tensor "hidden": losses have an input of this name`:         {tensor("hidden")},
		`data.aligned: tensor "lm_head.weight": losses have an input of this name`: {tensor("lm_head.weight")},
		`input_loss.wasm: build_loss: failed: graph_input: unknown input "teacher", expected one of logits, targets, weights, hidden, model.norm.weight, lm_head.weight, other`: {
			tensor("other"), traintest.WithHooks(traintest.InputLoss(t, "teacher", traintest.CallInput))},
		fmt.Sprintf(`tensor "teacher": it has 7 rows, expected %d`, n): {"data.aligned=[" + traintest.Positions(t, dir, 7) + "]"},
		"the loss reads the scalar \"beta\", but the module exports no loss_scalars": {traintest.WithHooks(traintest.Guest(t,
			"scaled.wasm", traintest.LossText, false,
			traintest.Hook("build_loss", traintest.Text(traintest.LossText, "logits"), w.Call(traintest.CallInput), w.Set(2),
				traintest.Text(traintest.LossText, "targets"), w.Call(traintest.CallInput), w.Set(3),
				traintest.Apply(traintest.LossText, "cross_entropy", 2, "{}"), w.Set(2), traintest.Text(traintest.LossText, "beta"),
				w.Call(traintest.CallScalar), w.Set(3), traintest.Apply(traintest.LossText, "mul", 2, "{}"))) + ", hook: build_loss")},
	} {
		c := traintest.Demo(t, dir, overrides...)
		_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
		var user *usererror.Error
		assert.ErrorAs(t, err, &user, want)
		assert.ErrorContains(t, err, want)
		assert.NoDirExists(t, c.Run.Dir)
	}
	_, err := train.Run(context.Background(), traintest.Demo(t, dir, "train.steps=1", traintest.WithHooks(one)),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.NoError(t, err, "one number will do where there are no weights")
}

// A resumed run needs the tensors that it had. Their files may have moved.
func TestResumingWithOtherTensorsIsRefused(t *testing.T) {
	dir := t.TempDir()
	n := len(traintest.TrainText(t, traintest.Demo(t, dir)))
	resume := func(steps int, aligned string) error {
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		_, err := train.Run(context.Background(), traintest.Demo(t, dir, fmt.Sprintf("train.steps=%d", steps),
			"data.aligned=["+aligned+"]", traintest.WithHooks(traintest.InputLoss(t, "teacher", traintest.CallInput))), o)
		return err
	}
	require.NoError(t, resume(2, traintest.Positions(t, dir, n)))
	require.NoError(t, resume(3, traintest.Positions(t, t.TempDir(), n)))
	other := filepath.Join(dir, "other.safetensors")
	require.NoError(t, safetensors.Write(other, []safetensors.Entry{{Name: "teacher", DType: safetensors.F32, Shape: []int{n},
		Data: make([]byte, 4*n)}}))
	assert.ErrorContains(t, resume(4, other), "the checkpoint's data differ: the hash of the aligned tensors was sha256:")
}
