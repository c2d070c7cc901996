package train

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	w "github.com/gpupipe/gpupipe/internal/wasmtest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withHooks is the override that adds modules to a run: "path, hook: …".
func withHooks(hooks ...string) string {
	for i, h := range hooks {
		hooks[i] = "{file: " + h + "}"
	}
	return "hooks=[" + strings.Join(hooks, ", ") + "]"
}

// low keeps the lowest byte of a number, which is a valid token.
var low = w.Seq(w.Const(255), w.I32And)

// mixer is a module that changes each array of a batch. A stateful one also counts batches and writes the count to one
// array.
func mixer(t *testing.T, remembers bool) string {
	body := w.Seq(
		array(0), array(0), w.Load(0), array(4), w.Load(0), w.I32Add, low, w.Store(0), // a token depends on the step
		array(1), array(1), w.Load(4), w.Const(1), w.I32Add, low, w.Store(4),
		array(2), w.ConstF32(0.25), w.StoreF32(8), array(2), w.ConstF32(3), w.StoreF32(60), array(2), w.ConstF32(0), w.StoreF32(36),
		array(3), w.Const(12), w.I32Add, w.Const(1), w.Const(8), w.MemoryFill(), // two tokens of the first sequence are one of their own
	)
	if remembers {
		body = w.Seq(body, counted(), array(0), w.GGet(1), w.Const(17), w.I32Mul, low, w.Store(20))
	}
	return guest(t, "mixer.wasm", "", remembers, exported("map_batch", body, w.Const(0)))
}

// weigher doubles the weight of one token and sets that of another to zero.
func weigher(t *testing.T) string {
	return guest(t, "weigher.wasm", "", false, exported("token_weights",
		array(2), array(2), []byte{0x2a, 2, 16}, w.ConstF32(2), 0x94, w.StoreF32(16), array(2), w.ConstF32(0), w.StoreF32(76), w.Const(0)))
}

const lossText = `logits targets weights hidden teacher beta cross_entropy {} mul scale {"factor":0} add`

// scaled is the cross-entropy times a scalar, which is 1 + (calls so far) / 8.
func scaled(t *testing.T) string {
	return guest(t, "scaled.wasm", lossText, false,
		exported("build_loss", part(lossText, "logits"), w.Call(callInput), w.Set(2), part(lossText, "targets"), w.Call(callInput), w.Set(3),
			apply(lossText, "cross_entropy", 2, "{}"), w.Set(2), part(lossText, "beta"), w.Call(callScalar), w.Set(3), apply(lossText, "mul", 2, "{}")),
		exported("loss_scalars", counted(), array(1), w.GGet(1), 0xb3 /* f32.convert_i32_u */, w.ConstF32(0.125), 0x94, w.ConstF32(1), w.F32Add, w.StoreF32(0), w.Const(0)))
}

// A run with batch hooks gives the same bits when it is interrupted anywhere and resumed, with any number of instances.
func TestBatchHooksResume(t *testing.T) {
	all := withHooks(mixer(t, true)+", hook: map_batch", mixer(t, false)+", hook: map_batch", weigher(t)+", hook: token_weights", scaled(t)+", hook: build_loss")
	for _, more := range [][]string{nil, {"pipeline.stages=2", "pipeline.delay=1", "pipeline.error_feedback=true"}} {
		dir := t.TempDir()
		configure := func(name string) config.Config {
			return demo(t, dir, append([]string{all, "train.save_every=2", "run.dir=" + filepath.Join(dir, name)}, more...)...)
		}
		run := func(name string, instances, stop int) (Result, error) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o := options(&reference{}, &notes{step: func(p Progress) {
				if p.Step == stop {
					cancel()
				}
			}})
			o.Resume, o.Instances = true, instances
			return Run(ctx, configure(name), o)
		}
		whole, err := run("whole", 1, 0)
		require.NoError(t, err)
		same := func(name string, got Result) {
			assert.Equal(t, 6, got.Step, name)
			for file, bits := range files(t, whole.Checkpoint) {
				assert.True(t, bits == files(t, got.Checkpoint)[file], "%s: %s", name, file)
			}
			assert.Equal(t, measurements(t, configure("whole").Run.Dir), measurements(t, configure(name).Run.Dir), name)
		}
		for _, n := range []int{2, 8} {
			got, err := run(fmt.Sprint("on ", n), n, 0)
			require.NoError(t, err)
			same(fmt.Sprint("on ", n), got)
		}
		for stop := 1; stop < 6; stop++ {
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
	for _, hooks := range []string{"hooks=[]", withHooks(mixer(t, false) + ", hook: map_batch"), withHooks(mixer(t, true) + ", hook: map_batch"),
		withHooks(weigher(t) + ", hook: token_weights"), withHooks(scaled(t) + ", hook: build_loss")} {
		res, err := Run(context.Background(), demo(t, t.TempDir(), "train.steps=3", hooks), options(&reference{}, &notes{}))
		require.NoError(t, err)
		bits := files(t, res.Checkpoint)["model.safetensors"]
		assert.Empty(t, learned[bits], "%s", hooks)
		learned[bits] = hooks
	}
}

// With batch hooks, two stages of 2BW give the bits of one device with a delay. Other schedules give those of one
// device.
func TestPipelinesWithBatchHooksEqualOneDevice(t *testing.T) {
	all := withHooks(mixer(t, true)+", hook: map_batch", weigher(t)+", hook: token_weights", scaled(t)+", hook: build_loss")
	for _, trial := range []struct{ one, other []string }{
		{[]string{"pipeline.delay=1"}, []string{"pipeline.schedule=2bw", "pipeline.stages=2"}},
		{[]string{"pipeline.delay=1", "pipeline.error_feedback=true"}, []string{"pipeline.schedule=2bw", "pipeline.stages=3", "pipeline.error_feedback=true"}},
		{nil, []string{"pipeline.schedule=interleaved", "pipeline.stages=2"}},
		{nil, []string{"pipeline.recompute=always"}},
	} {
		one := weightsOf(t, append(trial.one, all)...)
		other := weightsOf(t, append(trial.other, all)...)
		for file := range one {
			assert.True(t, one[file] == other[file], "%s: %v", file, trial.other)
		}
	}
}

// lossOfFirst is the loss of the first batch.
func lossOfFirst(t *testing.T, overrides ...string) float64 {
	t.Helper()
	n := &notes{}
	_, err := Run(context.Background(), demo(t, t.TempDir(), append([]string{"train.steps=1", "train.eval_every=0"}, overrides...)...), options(&reference{}, n))
	require.NoError(t, err)
	return n.steps[0].Loss
}

// weighing is the override that adds a module which copies these weights into each batch.
func weighing(t *testing.T, weights []float32) string {
	var b []byte
	for _, x := range weights {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return withHooks(guest(t, "weights.wasm", string(b), false,
		exported("token_weights", array(2), w.Const(words), w.Const(int32(len(b))), w.MemoryCopy(), w.Const(0))) + ", hook: token_weights")
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

// inputLoss is a module whose loss is one input or scalar, without the cross-entropy.
func inputLoss(t *testing.T, name string, call uint32) string {
	return guest(t, "input_loss.wasm", lossText, false,
		exported("build_loss", part(lossText, "logits"), w.Call(callInput), w.Set(2), part(lossText, "targets"), w.Call(callInput), w.Set(3),
			apply(lossText, "cross_entropy", 2, "{}"), w.Set(2), apply(lossText, "scale", 1, `{"factor":0}`), w.Set(2),
			part(lossText, name), w.Call(call), w.Set(3), apply(lossText, "add", 2, "{}")),
		exported("loss_scalars", counted(), array(1), w.GGet(1), 0xb3, w.StoreF32(0), w.Const(0))) + ", hook: build_loss"
}

// positions is a file with the tensor "teacher", whose rows are their numbers.
func positions(t *testing.T, dir string, n int) string {
	t.Helper()
	var rows []byte
	for i := range n {
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(float32(i)))
	}
	path := filepath.Join(dir, "teacher.safetensors")
	require.NoError(t, safetensors.Write(path, []safetensors.Entry{{Name: "teacher", DType: safetensors.F32, Shape: []int{n}, Data: rows}}))
	return path
}

// A loss reads the rows of aligned tensors, the scalars and the weights of its own batch.
func TestLossInputs(t *testing.T) {
	dir := t.TempDir()
	teacher := positions(t, dir, len(text(t, demo(t, dir))))
	run := func(name string, overrides ...string) (losses []float64) {
		n := &notes{}
		c := demo(t, dir, append([]string{"train.eval_every=0", "data.shuffle=false", "run.dir=" + filepath.Join(dir, name)}, overrides...)...)
		_, err := Run(context.Background(), c, options(&reference{}, n))
		require.NoError(t, err)
		for _, p := range n.steps {
			losses = append(losses, p.Loss)
		}
		return losses
	}
	for step, loss := range run("aligned", "data.aligned=["+teacher+"]", withHooks(inputLoss(t, "teacher", callInput))) {
		assert.InDelta(t, float64(step*32)+15.5, loss, 1e-4, "the mean of positions 32·step to 32·step+31")
	}
	for step, loss := range run("scalars", withHooks(inputLoss(t, "beta", callScalar))) {
		assert.InDelta(t, step+1, loss, 1e-6)
	}
	for _, loss := range run("weights", withHooks(inputLoss(t, "weights", callInput), weigher(t)+", hook: token_weights")) {
		assert.InDelta(t, 1, loss, 1e-6, "the mean of weights")
	}
	for _, loss := range run("ones", withHooks(inputLoss(t, "weights", callInput))) {
		assert.Equal(t, 1., loss, "where no hook sets any")
	}
}

// failingOn is a module that runs the given code for a batch whose first token is '#'. A stateful one writes its count
// of batches to the first row of the first aligned tensor.
func failingOn(t *testing.T, remembers bool, does ...any) string {
	body := w.Seq(array(0), w.Load(0), w.Const('#'), w.I32Eq, w.If(w.Empty, does...))
	if remembers {
		body = w.Seq(counted(), body, array(5), w.GGet(1), 0xb3, w.StoreF32(0))
	}
	return guest(t, "failing.wasm", "not this one", remembers, exported("map_batch", body, w.Const(0)))
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
	"failed: not this one": {part("not this one", "not this one"), w.Call(callFail), w.Const(0), w.Return},
	"trap: ":               {w.Unreachable},
	"deadline exceeded":    {w.Loop(w.Empty, w.Br(0))},
	"failed: tokens[0,5] is 256, expected a token below 256": {array(0), w.Const(256), w.Store(20), w.Const(0), w.Return},
}

func TestFailingBatchStopsRun(t *testing.T) {
	for want, does := range failures {
		for _, batch := range []int{0, 3} {
			dir := t.TempDir()
			c := demo(t, dir, "data.shuffle=false", "data.train=["+marked(t, dir, batch)+"]", withHooks(failingOn(t, false, does...)+", hook: map_batch, seconds: 0.1"))
			_, err := Run(context.Background(), c, options(&reference{}, &notes{}))
			var user *usererror.Error
			require.ErrorAs(t, err, &user, want)
			assert.ErrorContains(t, err, fmt.Sprintf("failing.wasm: map_batch: batch %d: %s", batch, want))
			if batch == 0 {
				assert.NoDirExists(t, c.Run.Dir, "nothing is left of a run that did not begin")
			} else {
				assert.ErrorContains(t, err, "; the checkpoint of step 3 is kept")
				o := options(&reference{}, &notes{}) // and can be gone on from, if only up to there
				o.Resume = true
				_, err = Run(context.Background(), c, o)
				assert.ErrorContains(t, err, fmt.Sprintf("map_batch: batch %d: ", batch))
			}
			assertNoFeeders(t)
		}
	}
}

func text(t *testing.T, c config.Config) []byte {
	t.Helper()
	b, err := os.ReadFile(c.Data.Train[0])
	require.NoError(t, err)
	return b
}

// The batches after a skipped one move up, whatever the failure was and wherever the run was interrupted. The state of
// a module does not contain the skipped batch.
func TestFailingBatchesAreSkipped(t *testing.T) {
	for _, remembers := range []bool{false, true} {
		for want, does := range failures {
			dir := t.TempDir()
			hashes := marked(t, dir, 0, 3, 4, 7)
			configure := func(name string) config.Config {
				return demo(t, dir, "data.shuffle=false", "train.eval_every=0", "data.train=["+hashes+"]", "run.dir="+filepath.Join(dir, name),
					"data.aligned=["+positions(t, dir, 1500)+"]",
					withHooks(failingOn(t, remembers, does...)+", hook: map_batch, on_error: skip, seconds: 0.1", inputLoss(t, "teacher", callInput)))
			}
			run := func(name string, stop, instances int) (*notes, Result) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				n := &notes{}
				n.step = func(p Progress) {
					if p.Step == stop {
						cancel()
					}
				}
				o := options(&reference{}, n)
				o.Resume, o.Instances = true, instances
				res, err := Run(ctx, configure(name), o)
				require.NoError(t, err)
				return n, res
			}
			n, whole := run("whole", 0, 1)
			out := strings.Join(n.text, "\n")
			for _, batch := range []int{0, 3, 4, 7} {
				assert.Contains(t, out, fmt.Sprintf("batch %d is skipped: ", batch))
			}
			assert.Contains(t, out, want)
			for step, batch := range []int{1, 2, 5, 6, 8, 9} {
				mean := float64(32*batch) + 15.5
				if remembers {
					mean += float64(step+1-32*batch) / 32
				}
				assert.InDelta(t, mean, n.steps[step].Loss, 1e-4, "%s: step %d", want, step)
			}
			var s state
			text, err := os.ReadFile(filepath.Join(whole.Checkpoint, "state.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &s))
			assert.EqualValues(t, 4, s.Omitted)
			assert.EqualValues(t, 10, s.Data.Step)
			for stop := 1; stop < 6; stop++ {
				name := fmt.Sprint("stopped at ", stop)
				run(name, stop, 8)
				_, got := run(name, 0, 2)
				assert.True(t, files(t, whole.Checkpoint)["model.safetensors"] == files(t, got.Checkpoint)["model.safetensors"], name)
				assert.Equal(t, measurements(t, whole.Dir), measurements(t, got.Dir), name)
			}
		}
	}
	assertNoFeeders(t)
}

// A run that ends leaves no goroutine behind: after a failure of a device, and after Ctrl-C during a slow call of a
// module.
func TestRunLeavesNoGoroutines(t *testing.T) {
	_, err := Run(context.Background(), demo(t, t.TempDir(), withHooks(mixer(t, true)+", hook: map_batch")), options(&reference{Fails: 9}, &notes{}))
	assert.Error(t, err)
	assertNoFeeders(t)
	spins := guest(t, "spins.wasm", "", false, exported("map_batch", w.Loop(w.Empty, w.Br(0)), w.Const(0)))
	ctx, cancel := context.WithCancel(context.Background())
	began := time.Now()
	time.AfterFunc(100*time.Millisecond, cancel)
	c := demo(t, t.TempDir(), withHooks(spins+", hook: map_batch"))
	_, err = Run(ctx, c, options(&reference{}, &notes{}))
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
		c := demo(t, dir, "data.shuffle=false", "data.train=["+marked(t, dir, batches...)+"]", "run.dir="+filepath.Join(dir, name),
			withHooks(failingOn(t, false, w.Unreachable)+", hook: map_batch, on_error: skip"))
		_, err := Run(context.Background(), c, options(&reference{}, &notes{}))
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
	one := guest(t, "one.wasm", lossText+" sum", false, exported("build_loss", part(lossText, "logits"), w.Call(callInput), w.Set(2),
		apply(lossText+" sum", "sum", 1, "{}"))) + ", hook: build_loss"
	n := len(text(t, demo(t, dir)))
	tensor := func(name string) string {
		path := filepath.Join(t.TempDir(), name+".safetensors")
		require.NoError(t, safetensors.Write(path, []safetensors.Entry{{Name: name, DType: safetensors.I32, Shape: []int{n}, Data: make([]byte, 4*n)}}))
		return "data.aligned=[" + path + "]"
	}
	for want, overrides := range map[string][]string{
		`one.wasm: build_loss: the loss is one number, f32[], and does not use "weights", which map_batch or token_weights sets: expected f32[16]`: {
			withHooks(one, weigher(t)+", hook: token_weights")},
		`data.aligned: tensor "hidden": losses have an input of this name`:         {tensor("hidden")},
		`data.aligned: tensor "lm_head.weight": losses have an input of this name`: {tensor("lm_head.weight")},
		`input_loss.wasm: build_loss: failed: graph_input: there is no input "teacher", expected one of logits, targets, weights, hidden, model.norm.weight, lm_head.weight, other`: {
			tensor("other"), withHooks(inputLoss(t, "teacher", callInput))},
		fmt.Sprintf(`tensor "teacher": it has 7 rows, expected %d`, n): {"data.aligned=[" + positions(t, dir, 7) + "]"},
		"it asks for the scalar \"beta\", but the module does not export loss_scalars": {withHooks(guest(t, "scaled.wasm", lossText, false,
			exported("build_loss", part(lossText, "logits"), w.Call(callInput), w.Set(2), part(lossText, "targets"), w.Call(callInput), w.Set(3),
				apply(lossText, "cross_entropy", 2, "{}"), w.Set(2), part(lossText, "beta"), w.Call(callScalar), w.Set(3), apply(lossText, "mul", 2, "{}"))) + ", hook: build_loss")},
	} {
		c := demo(t, dir, overrides...)
		_, err := Run(context.Background(), c, options(&reference{}, &notes{}))
		var user *usererror.Error
		assert.ErrorAs(t, err, &user, want)
		assert.ErrorContains(t, err, want)
		assert.NoDirExists(t, c.Run.Dir)
	}
	_, err := Run(context.Background(), demo(t, dir, "train.steps=1", withHooks(one)), options(&reference{}, &notes{}))
	assert.NoError(t, err, "one number will do where there are no weights")
}

// A resumed run needs the tensors that it had. Their files may have moved.
func TestResumingWithOtherTensorsIsRefused(t *testing.T) {
	dir := t.TempDir()
	n := len(text(t, demo(t, dir)))
	resume := func(steps int, aligned string) error {
		o := options(&reference{}, &notes{})
		o.Resume = true
		_, err := Run(context.Background(), demo(t, dir, fmt.Sprintf("train.steps=%d", steps), "data.aligned=["+aligned+"]", withHooks(inputLoss(t, "teacher", callInput))), o)
		return err
	}
	require.NoError(t, resume(2, positions(t, dir, n)))
	require.NoError(t, resume(3, positions(t, t.TempDir(), n)))
	other := filepath.Join(dir, "other.safetensors")
	require.NoError(t, safetensors.Write(other, []safetensors.Entry{{Name: "teacher", DType: safetensors.F32, Shape: []int{n}, Data: make([]byte, 4*n)}}))
	assert.ErrorContains(t, resume(4, other), "the checkpoint's data differ: the hash of the aligned tensors was sha256:")
}
