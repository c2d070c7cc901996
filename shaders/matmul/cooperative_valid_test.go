package matmul

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every variant compiles to valid SPIR-V, for f16 and for bf16.
func TestCooperativeVariantsAreValid(t *testing.T) {
	tier.Rest(t)
	compiler, err := spirv.NewCompiler("")
	require.NoError(t, err)
	defer compiler.Close()
	v := newValidator(t)
	devices := []struct {
		size  target.CooperativeMatrix
		lanes int
	}{{square(16), 32}, {oblong[0], 8}, {oblong[1], 16}}
	for i, c := range cooperativeCases() {
		e, d := []Element{F16, BF16}[i%2], devices[i%len(devices)]
		c.spec.TypeA, c.spec.TypeB = e, e
		l := tensorLimits(d.size, d.lanes, e.String())
		if d.size == square(16) && i/4%2 == 0 {
			l.Cooperative = append(l.Cooperative, target.CooperativeMatrix{M: 16, N: 8, K: 16, Input: e.String(), Result: "f32"}) // NVIDIA's
		}
		ks := cooperativeVariants(c.spec, l)
		require.NotEmpty(t, ks)
		for _, k := range ks {
			checkLimits(t, testCase{limits: l}, k)
			for _, p := range k.Passes {
				m, err := compiler.Compile(p.Source(), spirv.Float16|spirv.Subgroups|spirv.CooperativeMatrix|spirv.ZeroWorkgroup)
				require.NoError(t, err, "%s, %s\n%s", c.name, k.Name, p.Source())
				assert.Equal(t, p.Workgroup, m.Workgroup)
				assert.EqualValues(t, p.WorkgroupMemory, m.WorkgroupMemory)
				for i, b := range p.Bindings {
					written := b.Operand == C || p.Bindings[0].Operand == Offsets && i == 1 // the result, or the blocks of rows
					assert.Equal(t, written || b.Operand == Scratch && i == 2, m.Bindings[uint32(i)].Written, k.Name)
				}
				v.check(t, m)
			}
		}
	}
	v.counted(t)
}

// validator is the installed spirv-val.
type validator struct {
	path  string
	blind string // why it checks nothing
}

// newValidator returns a validator that the test uses until its end.
func newValidator(t *testing.T) *validator {
	v := &validator{path: filepath.Join(t.TempDir(), "m.spv")}
	if runtime.GOOS != "linux" {
		v.blind = "spirv-val is for Linux, where modules are used"
	}
	return v
}

// counted counts the checks of a validator that cannot make them as a case that did not run.
func (v *validator) counted(t *testing.T) {
	if v.blind != "" {
		t.Run("spirv-val", func(t *testing.T) { t.Skip(v.blind) })
	}
}

func (v *validator) check(t *testing.T, m *spirv.Module) {
	if v.blind != "" {
		return
	}
	var b []byte
	for _, w := range m.Code {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	require.NoError(t, os.WriteFile(v.path, b, 0o600))
	env := "vulkan1.2"
	if m.Code[1] >= 0x10600 {
		env = "vulkan1.3"
	}
	out, err := exec.Command("spirv-val", "--target-env", env, v.path).CombinedOutput()
	if strings.Contains(string(out), "Invalid capability operand: 6022") || strings.Contains(string(out),
		"Invalid capability operand: 5116") {
		v.blind = "the installed spirv-val is older than cooperative matrices"
		return
	}
	require.NoError(t, err, "spirv-val (Debian's spirv-tools): %s", out)
}

// The first variant, which is used without timing, is for tensor cores, and it is the largest that keeps a GPU busy.
func TestTensorCoresAreTheDefault(t *testing.T) {
	for _, c := range []struct {
		m, n, k int
		want    string
	}{
		{4096, 4096, 4096, "tensor 256x128x32/256"},
		{8192, 50257, 768, "tensor 256x128x32/256"},
		{8192, 768, 768, "tensor 128x128x32/128 double"},
		{1024, 1024, 1024, "tensor 128x64x32/128 double"},
		{768, 768, 65536, "tensor 256x128x32/256 split 7"},
		{128, 128, 64, "tensor 32x32x64/128 double"},
		{1, 4096, 4096, "vector 16x4"},
	} {
		s := Spec{Product: Product{Batch: 1, M: c.m, N: c.n, K: c.k, TransB: c.m == 1, TypeA: F16, TypeB: F16}}
		assert.Equal(t, c.want, Variants(s, tensorLimits(square(16), 32, "f16"))[1].Name)
		for _, k := range Variants(s, on(tensorLimits(square(16), 32, "f16"), true)) {
			assert.NotContains(t, k.Name, "tensor", "software computes by its own kernels")
		}
	}
}
