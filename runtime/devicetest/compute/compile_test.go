//go:build linux

package compute_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	gpuexec "github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compiling has a device compile every candidate, and run none.
type compiling struct {
	device.Device
	t     *testing.T
	texts map[string]bool
}

func (c *compiling) Choose(_ device.Device, label string, ks []shaders.Kernel, fallback int) (int, error) {
	for _, k := range ks {
		c.compile(label, k)
	}
	return fallback, nil
}

func (c *compiling) compile(label string, k shaders.Kernel) {
	for i, p := range k.Passes {
		if c.texts[p.Source] {
			continue
		}
		c.texts[p.Source] = true
		label := fmt.Sprintf("%s: %s, pass %d", label, k.Name, i)
		l, err := c.Load(&device.Program{Label: label, Shaders: []device.Shader{tune.Shader(label, p)}})
		if assert.NoError(c.t, err, p.Source) {
			l.Release()
		}
	}
}

// add compiles the kernels of graphs. A kernel with a single variant is not passed to the chooser.
func (c *compiling) add(graphs map[string]*graph.Graph) {
	p, err := gpuexec.NewPlan(c, graphs, gpuexec.Options{Tune: c})
	require.NoError(c.t, err)
	for name := range graphs {
		chosen, err := p.Chosen(name)
		require.NoError(c.t, err)
		for _, k := range chosen {
			c.compile(name, k)
		}
	}
}

// Drivers of GPUs compile every kernel variant of every case, and of training in every precision. Nothing runs, so
// Mesa's compilers can be called without their GPUs; docs/BENCHMARKS.md shows how.
func TestKernelsCompileOnGPUs(t *testing.T) {
	tier.Rest(t)
	adapters, err := vulkan.Adapters()
	require.NoError(t, err)
	for n, a := range adapters {
		if a.Kind == device.Software {
			continue // compiles when it runs them: conformance has it
		}
		d, err := vulkan.Open(n, vulkan.Options{CacheDir: t.TempDir()})
		require.NoError(t, err)
		c := &compiling{d, t, map[string]bool{}}
		for _, o := range op.Catalogue() {
			for _, task := range compute.Cases(o) {
				c.add(map[string]*graph.Graph{"case": task.Graph})
			}
		}
		for _, preset := range []string{"tiny", "smollm2-135m"} {
			m, err := model.Preset(preset)
			require.NoError(t, err)
			m.SeqLen = min(m.SeqLen, 1024)
			c.add(updates(t, m, "muon"))
			for _, half := range []graph.DType{graph.F32, graph.F16, graph.BF16} {
				in := model.InPrecision(m, half)
				s, err := in.Stage(model.StageOptions{Last: in.Units(), Batch: 8, Microbatches: 1})
				require.NoError(t, err)
				c.add(map[string]*graph.Graph{"forward": s.Forward, "backward": s.Backward})
			}
		}
		require.NoError(t, d.Close())
		t.Logf("%s compiles %d kernels", a.Info.Adapter, len(c.texts))
	}
	if !slices.ContainsFunc(adapters, func(a vulkan.Adapter) bool { return a.Kind != device.Software }) {
		t.Skip("no GPU here")
	}
}
