package compute_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	gpuexec "github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/require"
)

// collector is a device with WebGPU's default limits that keeps the text of every kernel: those that are loaded, and,
// as a Chooser, all candidates.
type collector struct {
	device.Device
	software bool
	texts    map[string]string // → label
}

func (c *collector) Info() device.Info {
	info := c.Device.Info()
	if c.software {
		info.Kind = device.Software
	}
	return info
}

func (c *collector) Limits() target.Limits {
	l := c.Device.Limits()
	l.Software = c.software
	return l
}

func (c *collector) Load(p *device.Program) (device.Loaded, error) {
	for _, s := range p.Shaders {
		c.texts[s.Source] = s.Label
	}
	return c.Device.Load(p)
}

func (c *collector) Choose(_ device.Device, label string, ks []shaders.Kernel, fallback int) (int, error) {
	for _, k := range ks {
		for _, p := range k.Passes {
			c.texts[p.Source] = label + ": " + k.Name
		}
	}
	return fallback, nil
}

func (c *collector) add(t *testing.T, graphs map[string]*graph.Graph) {
	plan, err := gpuexec.NewPlan(c, graphs, gpuexec.Options{Tune: c})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// training is the graphs of a model's step.
func training(t *testing.T, preset string, seq int, optimizer string) map[string]*graph.Graph {
	c, err := model.Preset(preset)
	require.NoError(t, err)
	c.SeqLen, c.NLayers = seq, min(c.NLayers, 4) // the text of more is the same
	graphs := updates(t, c, optimizer)
	graphs["grad"], err = c.Grad(1, 2, true)
	require.NoError(t, err)
	graphs["decode"], err = c.Decode()
	require.NoError(t, err)
	return graphs
}

// updates is the graphs of a model's update.
func updates(t *testing.T, c model.Config, optimizer string) map[string]*graph.Graph {
	var params []optim.Param
	for _, p := range c.Parameters() {
		matrix := len(p.Type.Shape) == 2
		gradients := c.Gradients(p.Name)
		last := len(gradients) - 1
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit,
			Gradient: gradients[last], Contributions: gradients[:last], Decay: matrix,
			Matrix: matrix && strings.HasPrefix(p.Unit, "layers.")})
	}
	a, err := optim.NewAlgorithm(optimizer)
	require.NoError(t, err)
	o, err := optim.New(optim.Config{Algorithm: a, AdamW: *optim.DefaultRest(), Clip: 1, Schedule: optim.Schedule{Name: "constant"}},
		params)
	require.NoError(t, err)
	shard := o.All()
	norms, err := shard.NormSquares()
	require.NoError(t, err)
	graphs := map[string]*graph.Graph{"norms": norms}
	for v := range o.Variants() {
		graphs[fmt.Sprint("update", v)], err = shard.Update(v)
		require.NoError(t, err)
	}
	return graphs
}

// collected is what kernels returns, once it was computed: that takes half a minute, and two tests need it.
var collected map[string]string

// structures returns one of all texts that have the same statements: they differ in numbers and in repetitions only.
// The second result reports whether a text has a statement that none before it in order has.
func structures(texts map[string]string) (order []string, novel map[string]bool) {
	combined, seen := map[string]bool{}, map[string]bool{}
	novel = map[string]bool{}
	for _, wgsl := range slices.Sorted(maps.Keys(texts)) {
		lines := compute.Statements(wgsl)
		all := strings.Join(lines, "\n")
		if combined[all] {
			continue
		}
		combined[all] = true
		order = append(order, wgsl)
		for _, line := range lines {
			novel[wgsl] = novel[wgsl] || !seen[line]
			seen[line] = true
		}
	}
	return order, novel
}

// kernels are the texts of every kernel of every case, and of training, with their labels.
func kernels(t *testing.T) map[string]string {
	if collected != nil {
		return collected
	}
	texts := map[string]string{}
	tiny, err := model.Preset("tiny")
	require.NoError(t, err)
	for _, software := range []bool{false, true} {
		c := &collector{null.New(null.Options{}), software, texts}
		for _, o := range op.Catalogue() {
			for _, task := range compute.Cases(o) {
				c.add(t, map[string]*graph.Graph{"case": task.Graph})
			}
		}
		for _, task := range slices.Concat(compute.Graphs(), compute.Chains(60)) {
			c.add(t, map[string]*graph.Graph{"graph": task.Graph})
		}
		c.add(t, training(t, "tiny", 128, "muon"))
		for _, optimizer := range optim.OptimizerNames() {
			c.add(t, updates(t, tiny, optimizer))
		}
		c.add(t, training(t, "smollm2-135m", 256, "muon"))
	}
	require.Greater(t, len(texts), 500)
	collected = texts
	return texts
}

// Every statement of a kernel of every case, and of training, translates to Metal's and Direct3D's languages. Kernels
// whose statements all occur in others are left out; TestKernelsAreValidSPIRV compiles them. The translator is no part
// of gpupipe.
func TestKernelsTranslate(t *testing.T) {
	tier.Rest(t)
	naga, err := exec.LookPath("naga")
	if err != nil {
		t.Skip("naga is not on PATH")
	}
	texts := kernels(t)
	order, novel := structures(texts)
	order = slices.DeleteFunc(order, func(wgsl string) bool { return !novel[wgsl] })
	require.Greater(t, len(order), 300)
	translate(t, naga, order, texts)
	t.Logf("%d kernels translate to MSL and HLSL", len(order))
}

func translate(t *testing.T, naga string, sources []string, labels map[string]string) {
	dir := t.TempDir()
	work := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range work {
				base := filepath.Join(dir, fmt.Sprint("k", i))
				if err := os.WriteFile(base+".wgsl", []byte(sources[i]), 0o600); err != nil {
					t.Error(err)
					continue
				}
				out, err := exec.Command(naga, base+".wgsl", base+".metal", base+".hlsl").CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v: %.600s\n%.2000s", labels[sources[i]], err, out, sources[i])
				}
				for _, ext := range []string{".wgsl", ".metal", ".hlsl"} {
					os.Remove(base + ext)
				}
			}
		})
	}
	for i := range sources {
		work <- i
	}
	close(work)
	wg.Wait()
}
