package traintest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/stretchr/testify/require"
)

// Microbatches is the number of microbatches of Demo.
const Microbatches = 2

// Demo is the config of a run of a few seconds in dir.
func Demo(t *testing.T, dir string, overrides ...string) config.Config {
	t.Helper()
	text := filepath.Join(dir, "text.txt")
	if _, err := os.Stat(text); err != nil {
		rng := rand.New(rand.NewPCG(1, 1))
		var b bytes.Buffer
		for range 200 {
			fmt.Fprintf(&b, "%s ", []string{"the", "cat", "sat", "on", "a", "mat"}[rng.IntN(6)])
		}
		require.NoError(t, os.WriteFile(text, b.Bytes(), 0o666))
	}
	c, err := config.Parse("demo", nil, append([]string{
		"model={vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 8}",
		"data={train: [" + text + "], val_fraction: 0.1}",
		"train={steps: 6, batch_size: 4, microbatches: 2, eval_every: 2, save_every: 2}",
		"lr.warmup=2", "optimizer.adamw.lr=0.03", "run.dir=" + filepath.Join(dir, "run"),
	}, overrides...))
	require.NoError(t, err)
	return c
}

// Files returns the tensors and configs of a checkpoint, byte for byte.
func Files(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		m[name] = string(b)
	}
	return m
}

// StepDir is a run's checkpoint of a step.
func StepDir(run string, step int) string {
	return filepath.Join(run, checkpoint.Folder, fmt.Sprint("step-", step))
}

// Without is a safetensors file without one of its tensors.
func Without(t *testing.T, path, name string) []byte {
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

// Alter rewrites a file of a checkpoint and its manifest.
func Alter(t *testing.T, dir, name string, change func([]byte) []byte) {
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

// Measurements returns the logged values of a run that do not depend on the clock.
func Measurements(t *testing.T, dir string) []metrics.Record {
	t.Helper()
	records, err := metrics.Read(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	for _, r := range records {
		delete(r.Values, "tokens_per_s")
	}
	return records
}

// Listing returns the names in a folder.
func Listing(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// JSONOf returns the object in a JSON file.
func JSONOf(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	m := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &m))
	return m
}

// HooksDir is the folder of the example hooks, from a package in pipeline.
const HooksDir = "../../examples/hooks/"

// Example hooks with the configs that tests use.
const (
	FocalHook  = "focal_loss.wasm, hook: build_loss, config: {z: 0.001}"
	RateHook   = "inverse_sqrt.wasm, hook: learning_rate, config: {warmup: 3}"
	StopHook   = "early_stopping.wasm, hook: on_metrics, config: {least: 100}" // stops at the fourth evaluation
	FilterHook = "quality_filter.wasm, hook: map_document, config: {least_words: 20}"
	MaskHook   = "document_mask.wasm, hook: map_batch, config: {separator: 10}"
)

// Hooked is the override that adds example modules to a run: "focal_loss.wasm, hook: build_loss".
func Hooked(hooks ...string) string {
	for i, h := range hooks {
		hooks[i] = "{file: " + HooksDir + h + "}"
	}
	return "hooks=[" + strings.Join(hooks, ", ") + "]"
}

// Documents writes a file of many documents, of which FilterHook keeps two thirds.
func Documents(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "text.jsonl")
	var b strings.Builder
	for i := range 60 {
		sentence := "The quick brown fox jumps over the lazy dog. "
		if i%3 == 0 {
			sentence = "1 2 3 # # "
		}
		fmt.Fprintf(&b, "{\"text\": \"Document %d. %s\"}\n", i, strings.Repeat(sentence, 2+i%5))
	}
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o666))
	return path
}

// GPT2Config is the config of the module that GPT2 returns.
const GPT2Config = "{d_model: 8, n_layers: 2, n_heads: 2}"

// GPT2 copies the module that builds a small GPT-2 to a new folder and returns its path.
func GPT2(t *testing.T) string {
	t.Helper()
	module, err := os.ReadFile(HooksDir + "gpt2.wasm")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "gpt2.wasm")
	require.NoError(t, os.WriteFile(path, module, 0o666))
	return path
}

// HookModel is the config of a run of a model that a module builds.
func HookModel(t *testing.T, dir, module string, overrides ...string) config.Config {
	t.Helper()
	return Demo(t, dir, append([]string{"model={arch: hook, vocab_size: 256, seq_len: 8}",
		"hooks=[{file: " + module + ", hook: build_model, config: " + GPT2Config + "}]",
		"train={steps: 5, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"}, overrides...)...)
}

// Overflowing has gradients that are too large for f16 at first, and again whenever the loss scale has grown.
const Overflowing = "train={precision: f16, loss_scale: {initial: 2097152, growth_every: 2}, steps: 8, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: 0.5}"

// WithHooks is the override that adds modules to a run: "path, hook: …".
func WithHooks(hooks ...string) string {
	for i, h := range hooks {
		hooks[i] = "{file: " + h + "}"
	}
	return "hooks=[" + strings.Join(hooks, ", ") + "]"
}

// Positions is a file with the tensor "teacher", whose rows are their numbers.
func Positions(t *testing.T, dir string, n int) string {
	t.Helper()
	var rows []byte
	for i := range n {
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(float32(i)))
	}
	path := filepath.Join(dir, "teacher.safetensors")
	require.NoError(t, safetensors.Write(path, []safetensors.Entry{{Name: "teacher", DType: safetensors.F32, Shape: []int{n}, Data: rows}}))
	return path
}

// TrainText returns the text that a run trains on.
func TrainText(t *testing.T, c config.Config) []byte {
	t.Helper()
	b, err := os.ReadFile(c.Data.Train[0])
	require.NoError(t, err)
	return b
}
