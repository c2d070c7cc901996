// The page trains in a headless Chromium, and the same is trained natively: the losses must be the same.
package main_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/examples/browser/trainer"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/gpupipe/gpupipe/runtime/webgpujs/chromium"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

const (
	tolerance = 1e-4 // relative, of losses in f32: the two devices have other kernels
	patience  = 3 * time.Minute
)

// run is what app.js is given.
type run struct {
	Config      trainer.Config `json:"config"`
	Text        string         `json:"text"` // its URL
	Hooks       []module       `json:"hooks"`
	SampleEvery int            `json:"sampleEvery"`
	Prompt      string         `json:"prompt"`
}

type module struct {
	File   string `json:"file"` // its URL
	Hook   string `json:"hook"`
	Config string `json:"config"`
}

// outcome is what app.js posts.
type outcome struct {
	Losses             []float64
	Sample, Log, Error string
}

func tiny() trainer.Config {
	c := trainer.Defaults()
	c.Model.DModel, c.Model.NLayers, c.Model.NHeads, c.Model.NKVHeads, c.Model.DFF, c.Model.SeqLen = 32, 2, 2, 2, 64, 16
	c.BatchSize, c.Steps, c.Warmup = 2, 12, 3
	return c
}

var modules = []module{
	{"hooks/focal_loss.wasm", hook.BuildLoss, `{"gamma": 2, "z": 0.01}`},
	{"hooks/inverse_sqrt.wasm", hook.LearningRate, `{"warmup": 4}`},
}

var text = []byte(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 40))

// build makes the page in a folder of its own.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("../../.ci/browser.sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// serve serves the page, the example hooks, a text and a run.
func serve(dir string, r run) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(dir)))
	mux.Handle("/hooks/", http.StripPrefix("/hooks/", http.FileServer(http.Dir("../hooks"))))
	mux.HandleFunc("/text", func(w http.ResponseWriter, _ *http.Request) { w.Write(text) })
	mux.HandleFunc("/run.json", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(r) })
	return mux
}

// inPage has the page do a run.
func inPage(t *testing.T, dir string, r run) (o outcome) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	posted, err := chromium.Page{Handler: serve(dir, r), Path: "?auto=run.json"}.Run(ctx)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(posted, &o), "%s", posted)
	return o
}

// native is the same run on this machine's own device, with the hooks under wazero.
func native(t *testing.T, r run) (losses []float64) {
	t.Helper()
	host, err := hook.NewHost("")
	require.NoError(t, err)
	defer host.Close()
	var hooks trainer.Hooks
	for _, given := range r.Hooks {
		m, err := host.Load(hook.Spec{File: filepath.Join("..", given.File), Hook: given.Hook, Config: []byte(given.Config)})
		require.NoError(t, err)
		if given.Hook == hook.BuildLoss {
			hooks.Loss, err = m.BuildLoss(t.Context(), r.Config.LossInputs())
			require.NoError(t, err)
			continue
		}
		rate, err := m.Rate(t.Context())
		require.NoError(t, err)
		defer rate.Close()
		hooks.Factor = func(step, steps int, base float64) (float64, error) {
			return rate.Factor(t.Context(), step, steps, base)
		}
	}
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	tr, err := trainer.New(dev, r.Config, text, hooks)
	require.NoError(t, err)
	defer tr.Close()
	require.NoError(t, tr.Train(t.Context(), r.Config.Steps, func(_ int, loss float64) { losses = append(losses, loss) }))
	return losses
}

// What the page trains, with a loss and a learning rate of WebAssembly modules in the page's own engine, is what is trained
// natively.
func TestThePageTrainsAsThisMachineDoes(t *testing.T) {
	r := run{Config: tiny(), Text: "text", Hooks: modules, SampleEvery: 6, Prompt: "The"}
	want := native(t, r)
	require.Len(t, want, r.Config.Steps)
	plain := r
	plain.Hooks = nil
	require.NotEqual(t, want[0], native(t, plain)[0], "the hooks change something")

	dir := build(t)
	got := inPage(t, dir, r)
	require.Empty(t, got.Error, got.Log)
	require.Len(t, got.Losses, len(want))
	for i := range want {
		assert.InEpsilon(t, want[i], got.Losses[i], tolerance, "step %d", i+1)
	}
	assert.Less(t, got.Losses[len(want)-1], got.Losses[0])
	assert.True(t, strings.HasPrefix(got.Sample, "The") && len(got.Sample) > len("The"), "%q", got.Sample)
	assert.Contains(t, got.Log, "hooks/focal_loss.wasm: a loss of ")
	assert.Contains(t, got.Log, "ended after step 12")

	// Mistakes are told in the page, by name.
	r.Hooks = []module{{"hooks/focal_loss.wasm", hook.BuildLoss, `{"gamma": "two"}`}}
	assert.Contains(t, inPage(t, dir, r).Error, "hook hooks/focal_loss.wasm: build_loss: failed: ")
	r.Hooks, r.Config.Model.DModel = []module{}, 33
	assert.Contains(t, inPage(t, dir, r).Error, "d_model")
	require.NoError(t, os.Remove(filepath.Join(dir, "trainer.wasm")))
	assert.Contains(t, inPage(t, dir, r).Error, "trainer.wasm: 404")
}
