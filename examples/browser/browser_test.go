// The tests use the page in a headless Chromium, and train the same model natively: the losses must be the same.
package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/examples/browser/trainer"
	"github.com/gpupipe/gpupipe/internal/testing/chromium"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	tolerance = 1e-4      // relative, of losses in f32: the two devices have other kernels
	limit     = time.Hour // a guard against hanging alone
)

// outcome is what testdata/drive.js posts.
type outcome struct {
	Config                            *trainer.Config // of the form's fields
	Losses                            []float64
	Device, Sample, Log, State, Error string
	Startable                         bool
	Seconds                           float64                  // from the page's start until the device was ready or its absence was reported
	Pixels                            struct{ Curve, Any int } // of the plot
	Presets                           []trainer.Config
	Preset                            string // chosen after a field was edited
	Optimizers                        []string
}

var text = []byte(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 40))

// statSources makes the test depend on the page's sources, so that go test does not use a cached result after a change
// of them.
func statSources(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err == nil && (ext == ".go" || ext == ".js" || ext == ".html") {
			_, err = os.Stat(path)
		}
		return err
	}))
}

// build builds the page into a new folder.
func build(t *testing.T) string {
	t.Helper()
	statSources(t)
	dir := t.TempDir()
	out, err := exec.Command("../../.ci/browser.sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	program, err := os.Stat(filepath.Join(dir, "trainer.wasm"))
	require.NoError(t, err)
	assert.Less(t, program.Size(), int64(13e6), "a package that looks up methods by name, as text/template does, adds 7 MB")
	index, err := os.ReadFile(filepath.Join(dir, "index.html"))
	require.NoError(t, err)
	for before, script := range map[string]string{`<script src="app.js">`: "before.js", "</html>": "drive.js"} {
		require.Equal(t, 1, bytes.Count(index, []byte(before)))
		index = bytes.Replace(index, []byte(before), []byte(`<script src="`+script+`"></script>`+before), 1)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.html"), index, 0o644))
	return dir
}

// use runs a scenario of testdata/drive.js on the page.
func use(t *testing.T, dir, scenario string) (o outcome) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(dir)))
	mux.Handle("/drive.js", http.FileServer(http.Dir("testdata")))
	mux.Handle("/before.js", http.FileServer(http.Dir("testdata")))
	mux.Handle("/hooks/", http.FileServer(http.Dir("..")))
	mux.HandleFunc("/text", func(w http.ResponseWriter, _ *http.Request) { w.Write(text) })
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	posted, err := chromium.Page{Handler: mux, Path: "?scenario=" + scenario}.Run(ctx)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(posted, &o), "%s", posted)
	require.Empty(t, o.Error)
	return o
}

// native returns the losses of the first steps of the same run on this machine's own device, with hooks under wazero.
func native(t *testing.T, dev device.Device, c trainer.Config, hooks trainer.Hooks, steps int) (losses []float64) {
	t.Helper()
	run, err := trainer.New(dev, c, text, hooks)
	require.NoError(t, err)
	defer run.Close()
	require.NoError(t, run.Train(t.Context(), steps, func(_ int, loss float64) { losses = append(losses, loss) }))
	return losses
}

// load loads the hooks that the scenario chooses.
func load(t *testing.T, c trainer.Config) trainer.Hooks {
	host, err := hook.NewHost("")
	require.NoError(t, err)
	t.Cleanup(func() { host.Close() })
	open := func(file, name, config string) *hook.Module {
		m, err := host.Load(hook.Spec{File: "../hooks/" + file, Hook: name, Config: []byte(config)})
		require.NoError(t, err)
		return m
	}
	loss, err := open("focal_loss.wasm", hook.BuildLoss, `{"gamma": 2, "z": 0.01}`).BuildLoss(t.Context(), c.LossInputs())
	require.NoError(t, err)
	rate, err := open("inverse_sqrt.wasm", hook.LearningRate, `{"warmup": 4}`).Rate(t.Context())
	require.NoError(t, err)
	return trainer.Hooks{Loss: loss, Factor: func(step, steps int, base float64) (float64, error) {
		return rate.Factor(t.Context(), step, steps, base)
	}}
}

func TestPage(t *testing.T) {
	chromium.Rest(t)
	dir := build(t)
	t.Run("trains as this machine does, with hooks", func(t *testing.T) {
		got := use(t, dir, "hooks")
		require.NotNil(t, got.Config)
		dev, err := webgpu.Open(0, webgpu.Options{})
		require.NoError(t, err)
		defer dev.Close()
		want := native(t, dev, *got.Config, load(t, *got.Config), got.Config.Steps)
		require.Len(t, want, 30)
		require.NotEqual(t, want[0], native(t, dev, *got.Config, trainer.Hooks{}, 1)[0], "the hooks change something")
		require.Len(t, got.Losses, len(want), got.Log)
		worst := 0.0
		for i := range want {
			worst = max(worst, (got.Losses[i]-want[i])/want[i], (want[i]-got.Losses[i])/want[i])
		}
		assert.Less(t, worst, tolerance)
		t.Logf("relative difference of losses: at most %.1e", worst)
		assert.Less(t, got.Losses[29], got.Losses[0])
		assert.True(t, strings.HasPrefix(got.Sample, "The") && len(got.Sample) > len("The"), "%q", got.Sample)
		assert.Greater(t, got.Pixels.Curve, 100, "the plot has the curve")
		assert.Contains(t, got.State, "step 30 of 30, loss ")
		assert.Contains(t, got.Log, "focal_loss.wasm: a loss of ")
		assert.Contains(t, got.Log, "ended after step 30")
	})
	t.Run("stops", func(t *testing.T) {
		got := use(t, dir, "stop")
		assert.Contains(t, got.Log, "ended after step ")
		assert.Less(t, len(got.Losses), 1000)
	})
	t.Run("names the device, and presets fill the form", func(t *testing.T) {
		got := use(t, dir, "presets")
		assert.Regexp(t, `^Your GPU: \S.* \(\w+\)\.$`, got.Device)
		require.Len(t, got.Presets, 4)
		assert.Equal(t, trainer.Defaults(), got.Presets[0])
		for i, c := range got.Presets {
			require.NoError(t, c.Model.Validate())
			assert.LessOrEqual(t, c.Model.Count(), int64(50_000_000), "preset %d fits in a page", i)
			assert.NotContains(t, got.Presets[:i], c)
		}
		assert.Equal(t, "Custom", got.Preset)
		assert.Equal(t, trainer.Optimizers(), got.Optimizers)
		assert.Zero(t, got.Pixels.Curve)
		assert.Greater(t, got.Pixels.Any, 1000, "an empty plot has axes")
	})
	for scenario, want := range map[string]string{
		"no_webgpu": "This browser has no WebGPU. ", "no_adapter": "This browser has WebGPU, but no GPU for it. ",
		"silent": "This browser has WebGPU, but it has not answered yet. ",
	} {
		t.Run("reports the lack of a GPU: "+scenario, func(t *testing.T) {
			got := use(t, dir, scenario)
			assert.True(t, strings.HasPrefix(got.Device, want), got.Device)
			assert.Less(t, got.Seconds, 5.0)
			assert.False(t, got.Startable)
			assert.Greater(t, got.Pixels.Any, 1000, "an empty plot has axes")
		})
	}
	t.Run("reports mistakes", func(t *testing.T) {
		got := use(t, dir, "mistakes")
		assert.Contains(t, got.Log, "d_model")
		assert.Contains(t, got.Log, "parameters, a page holds at most 50000000")
		assert.Contains(t, got.Log, "hook focal_loss.wasm: build_loss: failed: ")
		assert.Contains(t, got.Log, "the configuration of focal_loss.wasm: expected a JSON object")
		assert.Contains(t, got.Log, "hook text.txt: refused: ")
		assert.Empty(t, got.Losses)
	})
	t.Run("reports that the program is missing", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(dir, "trainer.wasm")))
		got := use(t, dir, "broken")
		assert.Contains(t, got.Log, "trainer.wasm: 404")
		assert.Contains(t, got.Device, "could not be loaded")
	})
}
