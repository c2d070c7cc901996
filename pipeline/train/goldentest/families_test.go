package goldentest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const families = "testdata/families"

// family is a model that transformers saved, and what transformers computes with it in f32 (docs/oracle/families.py).
type family struct {
	folder string
	Losses []float64 `json:"losses"` // of the windows in windows.bin
	Greedy []int     `json:"greedy"` // tokens after the first eight of windows.bin
	AdamW  []float64 `json:"adamw"`  // losses of training steps
	Muon   []float64 `json:"muon"`
}

// familyFiles lists the files with what transformers computes.
func familyFiles(t *testing.T) []string {
	paths, err := filepath.Glob(families + "/*/expected.json")
	require.NoError(t, err)
	require.Len(t, paths, 12)
	return paths
}

// eachFamily runs a test of the families of some files.
func eachFamily(t *testing.T, paths []string, run func(t *testing.T, f family)) {
	for _, path := range paths {
		f := family{folder: filepath.Dir(path)}
		t.Run(filepath.Base(f.folder), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &f))
			run(t, f)
		})
	}
}

// onDevice computes with kernels. The core of the tests does so for mixtral, the mixture of experts that has the
// fewest: each family has kernels of its own, which take long to compile.
var onDevice = inference.Target{Device: testdevice.Name, Open: gputest.Open}

// onReference computes with the ops' references.
func onReference() inference.Target {
	return inference.Target{Device: "null:0", Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}
}

func TestFamiliesPredictAsTransformersDoes(t *testing.T) { predict(t, familyFiles(t), onReference()) }
func TestFamiliesPredictOnADevice(t *testing.T) {
	predict(t, tier.Divide(t, familyFiles(t), func(_ int, path string) bool { return strings.Contains(path, "/mixtral/") }), onDevice)
}

// predict checks that weights of classes of transformers give its losses and its greedy tokens.
func predict(t *testing.T, paths []string, target inference.Target) {
	eachFamily(t, paths, func(t *testing.T, f family) {
		e, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: f.folder, Tokenizer: families,
			Data: []string{families + "/windows.bin"}, SeqLen: 40, BatchSize: 2, Target: target})
		require.NoError(t, err)
		mean := 0.0
		for _, loss := range f.Losses {
			mean += loss / float64(len(f.Losses))
		}
		assert.InEpsilon(t, mean, e.Loss, 2e-6)
		t.Logf("relative difference of the loss: %.1e", (e.Loss-mean)/mean)
		assert.Equal(t, f.Greedy, greedy(t, f.folder, len(f.Greedy), target))
	})
}

// greedy generates tokens after the first eight of the text. The tokenizer's tokens are the characters from '!' on.
func greedy(t *testing.T, folder string, n int, target inference.Target) (ids []int) {
	t.Helper()
	shard, err := os.ReadFile(families + "/windows.bin")
	require.NoError(t, err)
	var prompt []byte
	for i := range 8 {
		prompt = append(prompt, '!'+shard[1024+2*i])
	}
	src, err := inference.OpenWeights(folder, nil, families, "", nil)
	require.NoError(t, err)
	g, err := inference.NewGenerator(src, target)
	require.NoError(t, err)
	_, err = g.Generate(context.Background(), prompt, n, inference.Sampling{TopP: 1}, func(text []byte) error {
		for _, c := range text {
			ids = append(ids, int(c-'!'))
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	return ids
}

// An export of each class is the folder that transformers saved: its tensors, and a config.json of the same model.
func TestFamiliesAreExportedAsTransformersSavesThem(t *testing.T) {
	eachFamily(t, familyFiles(t), func(t *testing.T, f family) {
		out := filepath.Join(t.TempDir(), "out")
		_, err := inference.Export(context.Background(), inference.ExportOptions{From: f.folder, Tokenizer: families, DType: "bf16",
			Out: out})
		require.NoError(t, err)
		want, got := tensors(t, f.folder), tensors(t, out)
		assert.Equal(t, want, got)
		a, err := config.ReadModel(f.folder)
		require.NoError(t, err)
		b, err := config.ReadModel(out)
		require.NoError(t, err)
		assert.Equal(t, a, b)
		var theirs, ours map[string]any
		for folder, m := range map[string]*map[string]any{f.folder: &theirs, out: &ours} {
			text, err := os.ReadFile(filepath.Join(folder, "config.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, m))
		}
		assert.Equal(t, theirs["architectures"], ours["architectures"])
		for key, v := range theirs { // transformers writes rope_parameters instead of rope_theta
			if mine, ok := ours[key]; ok && key != "initializer_range" && key != "router_aux_loss_coef" && key != "intermediate_size" {
				assert.EqualValues(t, fmt.Sprint(v), fmt.Sprint(mine), key)
			}
		}
	})
}

func tensors(t *testing.T, folder string) map[string][]float32 {
	t.Helper()
	r, err := safetensors.Open(folder)
	require.NoError(t, err)
	all := map[string][]float32{}
	for _, x := range r.Tensors() {
		values, err := r.Float32(x.Name)
		require.NoError(t, err)
		all[fmt.Sprint(x.Name, x.Shape)] = values
	}
	require.NoError(t, r.Close())
	return all
}

// Training from weights of each class gives the losses that transformers' model has. A few steps show every gradient.
func TestFamiliesTrainAsTransformersDoes(t *testing.T) {
	eachFamily(t, familyFiles(t), func(t *testing.T, f family) {
		trainFamily(t, f, onReference(), map[string][]float64{"adamw": f.AdamW[:4]})
	})
}

// Muon's runs have AdamW's kernels, too, for what is no matrix.
func TestFamiliesTrainOnADevice(t *testing.T) {
	type run struct{ path, optimizer string }
	runs := []run{{families + "/mixtral/expected.json", "adamw"}}
	for _, path := range familyFiles(t) {
		runs = append(runs, run{path, "muon"})
	}
	for _, r := range tier.Divide(t, runs, tier.First[run](1)) {
		eachFamily(t, []string{r.path}, func(t *testing.T, f family) {
			losses := map[string][]float64{"adamw": f.AdamW, "muon": f.Muon}
			trainFamily(t, f, onDevice, map[string][]float64{r.optimizer: losses[r.optimizer]})
		})
	}
}

// trainFamily compares the losses of runs by optimizer.
func trainFamily(t *testing.T, f family, target inference.Target, losses map[string][]float64) {
	t.Helper()
	for name, want := range losses {
		text := strings.NewReplacer("FOLDER", f.folder, "NAME", name, "RATE", map[string]string{"adamw": "0.003",
			"muon": "0.02"}[name]).Replace(familyRun)
		c, err := config.Parse("run.yaml", []byte(text), []string{"run.dir=" + t.TempDir(), "pipeline.devices=" + target.Device})
		require.NoError(t, err)
		_, err = train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: target.Open,
			Execute: target.Execute}, StopAfter: len(want)})
		require.NoError(t, err)
		records, err := metrics.Read(filepath.Join(c.Run.Dir, "metrics.jsonl"))
		require.NoError(t, err)
		require.Len(t, records, len(want))
		worst := 0.0
		for i, r := range records {
			assert.InEpsilon(t, want[i], r.Values["loss"], 2e-5, "%s, step %d", name, i)
			worst = max(worst, r.Values["loss"]/want[i]-1, 1-r.Values["loss"]/want[i])
		}
		t.Logf("%s: largest relative difference of a loss: %.1e", name, worst)
	}
}

const familyRun = `
model: {seq_len: 40}
init: {from: FOLDER}
data: {train: testdata/families/tokens.bin, val_fraction: 0, tokenizer: testdata/families, shuffle: false}
train: {steps: 20, batch_size: 4, microbatches: 2, grad_clip: 1.0, eval_every: 0, save_every: 0, precision: f32}
optimizer: {name: NAME, lr: RATE, weight_decay: 0.1, adamw: {lr: 0.003, betas: [0.9, 0.95], eps: 1.0e-8}}
lr: {schedule: cosine, warmup: 4, min_ratio: 0.1}
`
