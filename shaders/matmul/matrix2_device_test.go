//go:build linux

package matmul

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	"github.com/stretchr/testify/require"
)

// The kernels compute correct products on devices whose workgroups multiply matrices of any size. Other devices, such
// as Mesa 26.2's lavapipe, run them rewritten for subgroup matrices without tensor addressing.
func TestMatrix2VariantsOnDevices(t *testing.T) {
	tier.Rest(t)
	found, err := vulkan.Adapters()
	require.NoError(t, err)
	ran := 0
	for n, a := range found {
		i := slices.IndexFunc(a.Flexible, func(f vulkan.Flexible) bool {
			return f.Scope == "subgroup" && f.A == "f16" && f.B == "f16" && f.Result == "f32"
		})
		if len(a.Limits.Flexible) == 0 && i < 0 {
			continue
		}
		dev, err := vulkan.Open(n, vulkan.Options{CacheDir: t.TempDir()})
		require.NoError(t, err)
		defer dev.Close()
		ran++
		if len(a.Limits.Flexible) > 0 {
			checkMatrix2(t, dev)
		} else {
			checkBySubgroups(t, dev, a.Flexible[i].Matrix)
		}
	}
	if ran == 0 {
		t.Skip("no device here has flexible cooperative matrices")
	}
}

func checkMatrix2(t *testing.T, dev *vulkan.Device) {
	for i, c := range float16Cases() {
		ks := matrix2Variants(c.spec, dev.Limits())
		if len(ks) == 0 {
			continue
		}
		t.Run(fmt.Sprintf("%s,%s", dev.Info().Adapter, c.name), func(t *testing.T) {
			check(t, dev, c, some(ks, i), asIs)
		})
	}
}

// checkBySubgroups runs kernels of one subgroup for each workgroup, on shapes that tiles fill. So it does not test
// clamping.
func checkBySubgroups(t *testing.T, dev *vulkan.Device, unit vulkan.Matrix) {
	l := dev.Limits()
	tile := matrix2{threads: l.SubgroupSize, rows: 2 * unit.M, cols: unit.N, depth: 2 * unit.K}
	v := newValidator(t)
	for i, c := range cooperativeCases()[:4] { // they have every transpose
		s := c.spec
		s.M, s.N, s.K = 2*tile.rows, 3*tile.cols, 6*tile.depth
		s.Batch, s.BatchStrideA, s.BatchStrideB = 1+i%3, s.M*s.K, s.K*s.N+8*i
		tile.splits = 1 + i/2
		c.spec = s
		t.Run(fmt.Sprintf("%s,%v,%v", dev.Info().Adapter, s.TransA, s.TransB), func(t *testing.T) {
			k := tile.kernel(s, l)
			m, err := spirv.Assemble(bySubgroup(k.Passes[0]).Source(), assemblyFeatures&^spirv.TensorAddressing)
			require.NoError(t, err)
			v.check(t, m)
			check(t, dev, c, []Kernel{k}, bySubgroup)
		})
	}
}

var (
	slicing  = regexp.MustCompile(`%slice_(\w) = OpTensorLayoutSliceNV %\w+ %layout_\w (%\w+) %\w+ (%\w+) %\w+\n`)
	striding = regexp.MustCompile(`%layout_(\w) = OpTensorLayoutSetStrideNV %\w+ %\w+ (%\w+) %one\n`)
	loading  = regexp.MustCompile(`= OpCooperativeMatrixLoadTensorNV (%\w+) %from_(\w) %any_\w %slice_\w None (\w+).*\n`)
	storing  = regexp.MustCompile(`OpCooperativeMatrixStoreTensorNV %into_c %result %slice_c None None\n`)
	leftOver = regexp.MustCompile(`(?m)^.*(Tensor|OpUndef).*\n`)
)

// bySubgroup rewrites a kernel for matrices of a subgroup, and for slices that are addressed by pointers and strides.
func bySubgroup(p Pass) Pass {
	text := p.Source()
	if !strings.HasPrefix(text, target.Assembly) {
		return p
	}
	stride := map[string]string{}
	for _, m := range striding.FindAllStringSubmatch(text, -1) {
		stride[m[1]] = m[2]
	}
	text = slicing.ReplaceAllStringFunc(text, func(line string) string {
		m := slicing.FindStringSubmatch(line)
		pointer, array := "%to_half", "%"+m[1]
		if m[1] == "c" {
			pointer = "%to_float"
		}
		return strings.NewReplacer("X", m[1], "FIRST", m[2], "SECOND", m[3], "LINE", stride[m[1]], "POINTER", pointer, "ARRAY",
			array).Replace(
			`%line_X = OpIMul %uint FIRST LINE
%corner_X = OpIAdd %uint %line_X SECOND
%index_X = OpIAdd %uint %corner_X %offset_X
%at_X = OpAccessChain POINTER ARRAY %zero %index_X
`)
	})
	text = loading.ReplaceAllStringFunc(text, func(line string) string {
		m := loading.FindStringSubmatch(line)
		order := "%zero" // by rows
		if m[3] == "TensorView" {
			order = "%one"
		}
		return fmt.Sprintf("= OpCooperativeMatrixLoadKHR %s %%at_%s %s %s\n", m[1], m[2], order, stride[m[2]])
	})
	text = storing.ReplaceAllString(text, "OpCooperativeMatrixStoreKHR %at_c %result %zero %n\n")
	text = leftOver.ReplaceAllString(text, "")
	text = strings.Replace(text, "%two = OpConstant %uint 2\n", "%two = OpConstant %uint 2\n%three = OpConstant %uint 3\n", 1)
	for _, typ := range []string{"%half", "%float"} {
		text = strings.ReplaceAll(text, "OpTypeCooperativeMatrixKHR "+typ+" %two", "OpTypeCooperativeMatrixKHR "+typ+" %three")
	}
	p.Code = text
	return p
}
