package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func export(t *testing.T, o ExportOptions) Exported {
	t.Helper()
	e, err := Export(context.Background(), o)
	require.NoError(t, err)
	return e
}

// An export is the model: it predicts a text as well, to the last bit, and holds what transformers looks for.
func TestExportIsTheModel(t *testing.T) {
	run := everyStep(t, "pipeline.delay=1", "pipeline.error_feedback=true", "pipeline.stages=2")
	text := filepath.Join(filepath.Dir(run), "text.txt")
	loss := func(from string, w Version) float64 {
		e, err := Evaluate(context.Background(), EvalOptions{From: from, Weights: w, Data: []string{text}, BatchSize: 8,
			Target: onReference})
		require.NoError(t, err)
		return e.Loss
	}
	for _, w := range []Version{VersionX, VersionY} {
		out := filepath.Join(t.TempDir(), "a", "b")
		var done, total int64
		e := export(t, ExportOptions{From: run, Weights: w, Out: out, Progress: func(d, n int64) { done, total = d, n }})
		four := 4
		assert.Equal(t, Exported{Out: out, Model: traintest.StepDir(run, 4), Step: &four, Weights: w, DType: "f32",
			Parameters: e.Parameters, Bytes: 4 * e.Parameters,
			Files: []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}}, e)
		assert.ElementsMatch(t, e.Files, traintest.Listing(t, out))
		assert.Equal(t, []int64{e.Bytes, e.Bytes}, []int64{done, total})
		assert.Equal(t, version(t, run, w), version(t, out, VersionX))
		assert.Equal(t, loss(run, w), loss(out, ""))
	}
	assert.NotEqual(t, loss(run, VersionX), loss(run, VersionY))

	out := filepath.Join(t.TempDir(), "third")
	three := 3
	assert.Equal(t, traintest.StepDir(run, 3), export(t, ExportOptions{From: run, Step: &three, Out: out}).Model)
	assert.Equal(t, version(t, traintest.StepDir(run, 3), VersionX), version(t, out, VersionX))
	config := traintest.JSONOf(t, filepath.Join(out, "config.json"))
	assert.Equal(t, "llama", config["model_type"])
	assert.Equal(t, "float32", config["torch_dtype"])
	for _, file := range []string{"config.json", "generation_config.json"} {
		id, ok := traintest.JSONOf(t, filepath.Join(out, file))["eos_token_id"]
		assert.True(t, ok && id == nil, "%s: bytes have no end, and without the key Llama's would be taken", file)
	}
	assert.Equal(t, "PreTrainedTokenizerFast", traintest.JSONOf(t, filepath.Join(out, "tokenizer_config.json"))["tokenizer_class"])
}

func TestExportNamesTheEndOfADocument(t *testing.T) {
	tok, err := tokenizer.Open("gpt2")
	require.NoError(t, err)
	src := &Source{Tokenizer: tok, Model: traintest.Demo(t, t.TempDir()).Model.Config}
	outputs, err := src.exported(exportTypes["f32"], 0, src.converter(context.Background(), safetensors.F32, 0, nil))
	require.NoError(t, err)
	found := map[string]map[string]any{}
	for _, o := range outputs {
		if strings.HasSuffix(o.Name, "config.json") {
			var text bytes.Buffer
			require.NoError(t, o.Encode(&text))
			var m map[string]any
			require.NoError(t, json.Unmarshal(text.Bytes(), &m))
			found[o.Name] = m
		}
	}
	assert.Equal(t, 50256.0, found["config.json"]["eos_token_id"])
	assert.Equal(t, 50256.0, found["generation_config.json"]["eos_token_id"])
	assert.Equal(t, "<|endoftext|>", found["tokenizer_config.json"]["eos_token"])
}

func TestExportNarrowsAndShards(t *testing.T) {
	run := everyStep(t, "train.steps=1")
	x := version(t, run, VersionX)
	for dtype, want := range map[string]struct {
		stored safetensors.DType
		torch  string
		error  float64 // relative
	}{"bf16": {safetensors.BF16, "bfloat16", 0x1p-8}, "f16": {safetensors.F16, "float16", 0x1p-11}} {
		out := filepath.Join(t.TempDir(), "out")
		e := export(t, ExportOptions{From: run, DType: dtype, Out: out, ShardLimit: 3000})
		assert.Equal(t, 2*e.Parameters, e.Bytes)
		assert.Contains(t, e.Files, "model-00001-of-00003.safetensors")
		assert.Equal(t, "model.safetensors.index.json", e.Files[len(e.Files)-1])
		assert.Equal(t, want.torch, traintest.JSONOf(t, filepath.Join(out, "config.json"))["torch_dtype"])
		index := traintest.JSONOf(t, filepath.Join(out, "model.safetensors.index.json"))
		assert.Equal(t, float64(e.Bytes), index["metadata"].(map[string]any)["total_size"])
		assert.Len(t, index["weight_map"], len(x))
		r, err := safetensors.Open(out)
		require.NoError(t, err)
		for name, values := range x {
			stored, _ := r.Lookup(name)
			require.Equal(t, want.stored, stored.DType)
			got, err := r.Float32(name)
			require.NoError(t, err)
			for i, v := range values {
				require.InDelta(t, v, got[i], math.Abs(float64(v))*want.error+0x1p-25, name)
			}
		}
		require.NoError(t, r.Close())
		again := filepath.Join(t.TempDir(), "wide") // from one layout to another
		export(t, ExportOptions{From: out, Out: again})
		assert.Equal(t, version(t, out, VersionX), version(t, again, VersionX))
	}
}

func TestExportReplacesExportsOnly(t *testing.T) {
	run := everyStep(t)
	parent := t.TempDir()
	out := filepath.Join(parent, "out")
	two := 2
	export(t, ExportOptions{From: run, Step: &two, Out: out, ShardLimit: 3000})
	before := version(t, out, VersionX)
	refused := func(o ExportOptions, want string) {
		t.Helper()
		_, err := Export(context.Background(), o)
		var user *usererror.Error
		require.ErrorAs(t, err, &user)
		assert.ErrorContains(t, err, want)
		assert.Equal(t, []string{"out"}, traintest.Listing(t, parent))
	}
	refused(ExportOptions{From: run, Out: out}, out+": a model is there already: replace it with --force")
	assert.Equal(t, before, version(t, out, VersionX))
	export(t, ExportOptions{From: run, Out: out, Force: true})
	assert.Equal(t, version(t, run, VersionX), version(t, out, VersionX))
	assert.Len(t, traintest.Listing(t, out), 5, "no shard is left")
	assert.Equal(t, []string{"out"}, traintest.Listing(t, parent))

	refused(ExportOptions{From: run, Out: filepath.Join(out, "config.json"), Force: true}, "config.json: a file, expected a folder to make")
	refused(ExportOptions{From: run, Out: run, Force: true}, ", expected only files of an export: choose another folder")
	refused(ExportOptions{From: run, Out: traintest.StepDir(run, 2), Force: true}, "found manifest.json, expected only files of an export")
	refused(ExportOptions{From: run}, "out: found nothing")
	assert.NotEmpty(t, version(t, traintest.StepDir(run, 2), VersionX))
}

func TestExportRefuses(t *testing.T) {
	run := everyStep(t)
	empty := filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.MkdirAll(filepath.Join(empty, "checkpoints"), 0o777))
	large := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(traintest.StepDir(run, 4), name))
		require.NoError(t, err)
		if name == "model.safetensors" { // its last tensor ends in 70000
			b = append(b[:len(b)-4:len(b)-4], 0, 0xb8, 0x88, 0x47)
		}
		require.NoError(t, os.WriteFile(filepath.Join(large, name), b, 0o666))
	}
	nine, four := 9, 4
	parent := t.TempDir()
	for want, o := range map[string]ExportOptions{
		empty + ": no usable checkpoint: there is none":                                        {From: empty},
		"no model here: expected a run folder":                                                 {From: parent},
		"no such file or folder":                                                               {From: filepath.Join(parent, "none")},
		run + ": no usable checkpoint of step 9: those that there are are of steps 1, 2, 3, 4": {From: run, Step: &nine},
		large + ": no usable checkpoint: there is none":                                        {From: large, Step: &four},
		"weights: found y, but " + large:                                                       {From: large, Weights: VersionY},
		`dtype: found "f8", expected f32, bf16 or f16`:                                         {From: run, DType: "f8"},
		`tensor "model.norm.weight": element 7 is 70000, beyond F16`:                           {From: large, DType: "f16"},
		traintest.StepDir(run, 4) + `: the tokenizer "gpt2" has 50257 tokens, but the model has rows for 256`: {From: run,
			Tokenizer: "gpt2"},
	} {
		o.Out = filepath.Join(parent, "a", "out")
		_, err := Export(context.Background(), o)
		var user *usererror.Error
		assert.ErrorAs(t, err, &user, want)
		assert.ErrorContains(t, err, want)
		assert.Empty(t, traintest.Listing(t, parent))
	}
	path := filepath.Join(traintest.StepDir(run, 4), "model.safetensors")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[len(b)-1] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o666))
	_, err = Export(context.Background(), ExportOptions{From: run, Step: &four, Out: filepath.Join(parent, "out")})
	assert.ErrorIs(t, err, checkpoint.ErrNone)
	assert.ErrorContains(t, err, path+": altered: sha256")
	n := &runtest.Notes{}
	e := export(t, ExportOptions{From: run, Out: filepath.Join(parent, "out"), Note: n.Note})
	assert.Equal(t, traintest.StepDir(run, 3), e.Model, "without a step the latest good one is taken")
	assert.Contains(t, strings.Join(n.Text, "\n"), "step-4 is damaged")
}

func TestExportInterrupted(t *testing.T) {
	run := everyStep(t, "train.steps=0")
	parent := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	_, err := Export(ctx, ExportOptions{From: run, Out: filepath.Join(parent, "out"), Progress: func(int64, int64) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, traintest.Listing(t, parent))
}
