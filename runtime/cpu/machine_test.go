//go:build linux && cgo

package cpu

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func files(of map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, content := range of {
		m[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return m
}

func TestReadingTheMachine(t *testing.T) {
	var m machine
	m.read(files(map[string]string{"proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu avx512f\n\nprocessor : 1\nmodel name : other\n"}))
	assert.Equal(t, machine{model: "Xeon", vendor: "Intel", features: "fpu avx512f"}, m)
	m = machine{}
	m.read(files(map[string]string{"proc/cpuinfo": "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0c\n"}))
	assert.Equal(t, "Arm", m.vendor)
	assert.Equal(t, "fp asimd", m.features)
	assert.Contains(t, m.model, " CPU, part 0xd0c")
	m = machine{}
	m.read(files(nil))
	assert.Contains(t, m.model, " CPU")
}

// Instructions are offered where the CPU has them and the compiler knows them.
func TestMatricesNeedTheCPUAndTheCompiler(t *testing.T) {
	m := thisMachine()
	features := strings.Fields(m.features)
	find := func(last ...string) *cc.Compiler {
		c, err := cc.Find(cc.Options{CPU: m.features, Last: last})
		require.NoError(t, err)
		return c
	}
	have := func(features ...string) machine { return machine{features: strings.Join(features, " ")} }
	all := matrices(m, find())
	if slices.Contains(features, "avx512_bf16") {
		assert.Contains(t, all, target.AVX512)
		assert.Equal(t, []target.CooperativeMatrix{target.AVX512}, matrices(have("avx512f", "avx512_bf16", "avx512dq", "avx512bw"), find()))
		assert.Empty(t, matrices(have("avx512f", "avx512_bf16"), find()), "attention needs more")
		assert.NotContains(t, matrices(m, find("-mno-avx512f")), target.AVX512, "the compiler's flags exclude its registers")
	}
	if slices.Contains(features, "amx_bf16") {
		assert.Contains(t, all, target.AMX)
	}
	assert.Empty(t, matrices(have("avx2"), find()))
	if runtime.GOARCH == "amd64" {
		assert.Empty(t, matrices(have("asimd", "bf16"), find()), "the compiler is for another CPU")
	}
}
