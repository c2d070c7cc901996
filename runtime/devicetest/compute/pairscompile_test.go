//go:build linux && amd64

package compute_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
	gpuexec "github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/gpupipe/gpupipe/shaders/native"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withPairs reports AVX512-BF16, whatever the CPU has.
type withPairs struct{ device.Device }

func (d withPairs) Limits() target.Limits {
	l := d.Device.Limits()
	l.Cooperative = []target.CooperativeMatrix{target.AVX512}
	return l
}

// pairsTexts is a Chooser that keeps the kernels of attention by pairs.
type pairsTexts map[string]bool

func (p pairsTexts) Choose(_ device.Device, _ string, ks []shaders.Kernel, fallback int) (int, error) {
	for _, k := range ks {
		for _, pass := range k.Passes {
			if k.Name == pairs {
				p[pass.Source] = true
			}
		}
	}
	return fallback, nil
}

// Compilers accept the kernels for CPUs with AVX512-BF16 on every machine. The kernels name instructions, so that the
// compiler's CPU must have all of them.
func TestAttentionByPairsCompiles(t *testing.T) {
	tier.Rest(t)
	texts := pairsTexts{}
	dev := withPairs{testdevice.Device(t)}
	for _, dim := range []int{16, 80} {
		_, err := gpuexec.NewPlan(dev, map[string]*graph.Graph{"g": attentionAndGradient(t, graph.BF16, dim)}, gpuexec.Options{Tune: texts})
		require.NoError(t, err)
	}
	assert.Len(t, texts, 2*4, "two passes, with and without segments")
	for _, command := range []string{"gcc", "clang"} {
		_, err := exec.LookPath(command)
		require.NoError(t, err, "this test needs %s", command)
		c, err := cc.Find(cc.Options{Command: command, Last: []string{"-march=x86-64-v4", "-mavx512bf16", "-O1"}})
		require.NoError(t, err)
		for text := range texts {
			unit, symbol := native.Unit(text, cc.Unit)
			_, _, err := c.Compile(context.Background(), unit, symbol)
			assert.NoError(t, err, command)
		}
	}
}
