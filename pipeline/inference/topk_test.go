package inference

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

// teacher trains a tiny model for a few steps.
func teacher(t *testing.T, dir string, overrides ...string) config.Config {
	t.Helper()
	c := traintest.Demo(t, dir, append([]string{"train.steps=4", "run.dir=" + filepath.Join(dir, "teacher")}, overrides...)...)
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	return c
}

func stored(t *testing.T, o TopKOptions) (out Stored, ids []uint32, logs []float32) {
	t.Helper()
	out, err := TopK(context.Background(), o)
	require.NoError(t, err)
	f, err := safetensors.Open(o.Out)
	require.NoError(t, err)
	defer f.Close()
	raw, err := f.Bytes("teacher_ids")
	require.NoError(t, err)
	for i := 0; i < len(raw); i += 4 {
		ids = append(ids, binary.LittleEndian.Uint32(raw[i:]))
	}
	logs, err = f.Float32("teacher_logprobs")
	require.NoError(t, err)
	return out, ids, logs
}

// decoded is the logits after each token of a text, from a model that is fed token by token, and begins anew before
// the tokens that begins reports.
func decoded(t *testing.T, from string, tokens []int32, begins func(i int) bool) (logits [][]float64) {
	t.Helper()
	src, err := OpenModel(from, "")
	require.NoError(t, err)
	g, err := NewGenerator(src, onReference)
	require.NoError(t, err)
	for i, id := range tokens {
		if begins(i) {
			g.fed = 0
		}
		program, err := g.reader.read(g.session, []uint32{uint32(id)}, g.fed)
		require.NoError(t, err)
		g.fed++
		p, err := g.session.Output(program, model.LogitsOutput)
		require.NoError(t, err)
		b, err := p.Wait()
		require.NoError(t, err)
		var row []float64
		for _, x := range exec.ToF32(b) {
			row = append(row, float64(x))
		}
		logits = append(logits, row)
	}
	require.NoError(t, g.Close())
	return logits
}

// What is stored is what decoding gives, for every token of the text, also after the last whole window; on a device
// too, and of a model that a module writes.
func TestTopKStoresWhatDecodingGives(t *testing.T) {
	dir := t.TempDir()
	c := teacher(t, dir)
	other := traintest.HookModel(t, dir, traintest.GPT2(t), "run.dir="+filepath.Join(dir, "written"))
	_, err := train.Run(context.Background(), other, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	tok, err := tokenizer.Open("bytes")
	require.NoError(t, err)
	text, _, err := data.Load(context.Background(), data.Options{Train: c.Data.Train, Tokenizer: tok, Vocab: 256})
	require.NoError(t, err)
	defer text.Close()
	tokens := make([]int32, text.Len())
	require.NoError(t, text.Read(tokens, 0))
	require.NotZero(t, len(tokens)%c.Model.SeqLen, "the last window is not whole")
	const k = 5
	for name, o := range map[string]TopKOptions{
		"reference": {From: c.Run.Dir, Data: c.Data.Train, Target: onReference},
		"device":    {From: c.Run.Dir, Data: c.Data.Train, Target: Target{Open: testdevice.Open}},
		"short":     {From: c.Run.Dir, Target: onReference, SeqLen: 5}, // and the text of the run
		"written":   {From: other.Run.Dir, Target: onReference},
	} {
		o.K, o.Out, o.BatchSize = k, filepath.Join(dir, name+".safetensors"), 7
		var done int64
		o.Progress = func(n, total int64) {
			assert.Greater(t, n, done)
			assert.Equal(t, text.Len(), total)
			done = n
		}
		window := cmp.Or(o.SeqLen, c.Model.SeqLen)
		out, ids, logs := stored(t, o)
		assert.Equal(t, Stored{Out: o.Out, Model: out.Model, Weights: "x", Text: out.Text, Tokens: text.Len(), K: k, SeqLen: window,
			Bytes: 8 * k * text.Len()}, out)
		assert.Equal(t, text.Len(), done)
		require.Len(t, ids, len(tokens)*k)
		for i, logits := range decoded(t, o.From, tokens, func(i int) bool { return i%window == 0 }) {
			assertLikeliest(t, logits, ids[i*k:][:k], logs[i*k:][:k], "%s: token %d", name, i)
		}
	}
}

// assertLikeliest compares the prediction of a token with its logits.
func assertLikeliest(t *testing.T, logits []float64, ids []uint32, logs []float32, args ...any) {
	t.Helper()
	lse := floats.LogSumExp(logits)
	best := slices.Clone(logits)
	slices.SortFunc(best, func(a, b float64) int { return cmp.Compare(b, a) })
	for j, id := range ids {
		require.InDelta(t, best[j]-lse, logs[j], 1e-4, args...)
		require.InDelta(t, best[j], logits[id], 1e-4, args...)
	}
}

// A model that was trained with data.document_mask predicts each document as it does alone.
func TestTopKAttendsWithinDocuments(t *testing.T) {
	dir := t.TempDir()
	const k, space = 3, 32 // each word is a document
	c := teacher(t, dir, "data.document_mask=true", fmt.Sprint("data.separator=", space))
	_, ids, logs := stored(t, TopKOptions{From: c.Run.Dir, K: k, Out: filepath.Join(dir, "t"), BatchSize: 7, Target: onReference})
	var tokens []int32
	for _, b := range traintest.TrainText(t, c) {
		tokens = append(tokens, int32(b))
	}
	require.Len(t, ids, len(tokens)*k)
	begins := func(i int) bool { return i%c.Model.SeqLen == 0 || tokens[i-1] == space }
	for i, logits := range decoded(t, c.Run.Dir, tokens, begins) {
		assertLikeliest(t, logits, ids[i*k:][:k], logs[i*k:][:k], "token %d", i)
	}
}

// Without a text named it is that of the run as its hooks have made it: with it a student's predictions line up.
func TestTopKOfAMappedText(t *testing.T) {
	dir := t.TempDir()
	c := teacher(t, dir, "data.train=["+traintest.Documents(t, dir)+"]",
		traintest.Hooked("quality_filter.wasm, hook: map_document, config: {least_words: 20}"))
	out, _, _ := stored(t, TopKOptions{From: c.Run.Dir, K: 1, Out: filepath.Join(dir, "t"), BatchSize: 16, Target: onReference})
	assert.Equal(t, "training text of the run", out.Text)
	student := traintest.Demo(t, dir, "data.train=["+traintest.Documents(t, dir)+"]", "data.aligned=["+out.Out+"]", "train.steps=1",
		traintest.Hooked("quality_filter.wasm, hook: map_document, config: {least_words: 20}"))
	_, err := train.Run(context.Background(), student, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.NoError(t, err)
	student = traintest.Demo(t, dir, "data.train=["+traintest.Documents(t, dir)+"]", "data.aligned=["+out.Out+"]", "train.steps=1",
		"run.dir="+dir+"/other")
	_, err = train.Run(context.Background(), student, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.ErrorContains(t, err, "one for each training token")
}

// What goes wrong is said before work begins, or leaves nothing behind.
func TestTopKThatFails(t *testing.T) {
	dir := t.TempDir()
	c := teacher(t, dir)
	out := filepath.Join(dir, "out", "t.safetensors")
	attempt := func(ctx context.Context, change func(o *TopKOptions)) error {
		o := TopKOptions{From: c.Run.Dir, K: 2, Out: out, BatchSize: 4, Target: onReference}
		change(&o)
		_, err := TopK(ctx, o)
		return err
	}
	same := func(*TopKOptions) {}
	wrong := func(want string, change func(o *TopKOptions)) {
		t.Helper()
		err := attempt(context.Background(), change)
		var user *usererror.Error
		assert.ErrorAs(t, err, &user)
		assert.ErrorContains(t, err, want)
	}
	wrong("no such file or directory", same)
	require.NoError(t, os.Mkdir(filepath.Dir(out), 0o777))
	wrong("k: found 0, expected an integer from 1 to 64", func(o *TopKOptions) { o.K = 0 })
	wrong("out: found nothing", func(o *TopKOptions) { o.Out = "" })
	wrong("expected a file to write", func(o *TopKOptions) { o.Out = dir })
	wrong("--data: none.txt: no such file", func(o *TopKOptions) { o.Data = []string{"none.txt"} })
	wrong(`device "x": no such device`, func(o *TopKOptions) { o.Target.Device = "x" })

	ctx, cancel := context.WithCancel(context.Background())
	err := attempt(ctx, func(o *TopKOptions) { o.Progress = func(int64, int64) { cancel() } })
	assert.ErrorIs(t, err, context.Canceled)
	err = attempt(context.Background(), func(o *TopKOptions) {
		o.Target.Execute = (&traintest.Reference{Fault: traintest.FailAt(2)}).Execute
	})
	require.Error(t, err)
	assert.False(t, errors.As(err, new(*usererror.Error)), "%v", err)
	left, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	assert.Empty(t, left)

	require.NoError(t, attempt(context.Background(), same))
	wrong("t.safetensors: it is there already: replace it with --force", same)
	require.NoError(t, attempt(context.Background(), func(o *TopKOptions) { o.Force = true }))
}
