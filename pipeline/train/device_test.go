package train

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/tokenizer"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openGPU opens the first adapter of the machine.
func openGPU(string) (device.Device, error) { return webgpu.Open(0, webgpu.Options{}) }

// Twenty steps on a real device in f32 against PyTorch in float64.
func TestDeviceTrainsAsPyTorchDoes(t *testing.T) {
	for _, config := range goldenConfigs(t) {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(config, "testdata/golden/"), ".yaml"), func(t *testing.T) {
			c, want := readGolden(t, config)
			c.Run.Dir = t.TempDir()
			_, err := Run(context.Background(), c, Options{OpenDevice: openGPU})
			require.NoError(t, err)
			records, err := metrics.Read(filepath.Join(c.Run.Dir, "metrics.jsonl"))
			require.NoError(t, err)
			require.Len(t, records, len(want.Losses))
			for i, r := range records {
				assert.InEpsilon(t, want.Losses[i], r.Values["loss"], 2e-5, "step %d", i)
				assert.InEpsilon(t, want.GradNorms[i], r.Values["grad_norm"], 1e-3, "step %d", i)
			}
		})
	}
}

// Every gradient of the first step on a real device against PyTorch.
func TestDeviceGradientsAgreeWithPyTorch(t *testing.T) {
	for _, name := range []string{"tied/adamw", "untied/adamw", "odd/adamw", "gqa/adamw-clip"} {
		t.Run(name, func(t *testing.T) {
			c, _ := readGolden(t, "testdata/golden/"+name+".yaml")
			got := deviceGradients(t, c)
			grads, err := safetensors.Open(filepath.Join(c.Init.From, "grads.safetensors"))
			require.NoError(t, err)
			for _, p := range c.Model.Parameters() {
				want, err := grads.Float32(p.Name)
				require.NoError(t, err)
				var diff, norm float64
				for i, g := range got[p.Name] {
					diff += math.Pow(float64(g)-float64(want[i]), 2)
					norm += math.Pow(float64(want[i]), 2)
				}
				assert.Less(t, math.Sqrt(diff/norm), 1e-4, p.Name)
			}
			require.NoError(t, grads.Close())
		})
	}
}

// deviceGradients is the gradient of the first batch.
func deviceGradients(t *testing.T, c Config) map[string][]float32 {
	t.Helper()
	tok, err := tokenizer.Open(c.Data.Tokenizer)
	require.NoError(t, err)
	r := &run{Config: c, Options: Options{OpenDevice: openGPU}}
	defer func() { assert.NoError(t, r.close()) }()
	r.data, err = openCorpus(context.Background(), c, tok, 1, nil)
	require.NoError(t, err)
	for _, step := range []func() error{r.build, r.findWeights, r.plan, r.load, r.enqueue} {
		require.NoError(t, step())
	}
	grads := map[string][]float32{}
	for _, p := range c.Model.Parameters() {
		grads[p.Name] = make([]float32, p.Type.Shape.Len())
		for _, name := range c.Model.Gradients(p.Name) {
			read, err := r.session.ReadVariable(name)
			require.NoError(t, err)
			b, err := read.Wait()
			require.NoError(t, err)
			for i, g := range floats(b) {
				grads[p.Name][i] += g
			}
		}
	}
	return grads
}
