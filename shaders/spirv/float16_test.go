package spirv

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const matrices = `enable wgpu_cooperative_matrix;
@group(0) @binding(0) var<storage, read_write> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
var<workgroup> stage: array<vec4<f32>, 64>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) l: u32, @builtin(subgroup_id) s: u32) {
	stage[l] = bitcast<vec4<f32>>(x[l]);
	workgroupBarrier();
	var c = coop_mat16x16<f32, C>();
	let at = s * 32u; let rows = 2u;
	let a = coopLoadT<coop_mat16x16<f32, A>>(&stage[at], rows);
	let b = coopLoad<coop_mat16x16<f32, B>>(&stage[at], rows);
	c = coopMultiplyAdd(a, b, c);
	let to = 0u; let across = 4u;
	coopStoreT(c, &y[to], across);
}
`

const matrixFeatures = Float16 | Subgroups | CooperativeMatrix

// declared collects what a module says of 16-bit floats: capabilities, types of floats, and the component types of
// matrices by their use.
func declared(t *testing.T, m *Module) (capabilities []uint32, floats [][]uint32, components map[uint32][]uint32) {
	t.Helper()
	components, types, constants := map[uint32][]uint32{}, map[uint32][]uint32{}, map[uint32]uint32{}
	for rest := m.Code[5:]; len(rest) > 0; rest = rest[rest[0]>>16:] {
		in := instruction(rest[:rest[0]>>16])
		switch in.op() {
		case opCapability:
			capabilities = append(capabilities, in[1])
		case opTypeFloat:
			assert.Less(t, in[1], m.Code[3], "an id within the bound")
			floats, types[in[1]] = append(floats, in[2:]), in[2:]
		case opConstant:
			constants[in[2]] = in[3]
		case opTypeMatrix:
			require.Contains(t, types, in[2], "types are declared before they are used")
			components[constants[in[6]]] = types[in[2]]
		}
	}
	return capabilities, floats, components
}

func TestFactorsAreFloat16(t *testing.T) {
	c := compiler(t, "")
	m, err := c.Compile(matrices, matrixFeatures)
	require.NoError(t, err)
	capabilities, floats, components := declared(t, m)
	assert.Contains(t, capabilities, uint32(capabilityFloat16))
	assert.Equal(t, [][]uint32{{16}, {32}}, floats)
	assert.Equal(t, map[uint32][]uint32{0: {16}, 1: {16}, 2: {32}}, components)
	assert.True(t, m.Subgroups && m.Matrices)
	assert.Equal(t, map[uint32]Binding{0: {}, 1: {Written: true}}, m.Bindings)

	m, err = c.Compile(target.Bfloat16Directive+matrices, matrixFeatures)
	require.NoError(t, err)
	capabilities, floats, components = declared(t, m)
	assert.NotContains(t, capabilities, uint32(capabilityFloat16))
	assert.Subset(t, capabilities, []uint32{capabilityBfloat16, capabilityBfloat16Matrix})
	assert.Equal(t, [][]uint32{{16, encodingBfloat16}, {32}}, floats)
	assert.Equal(t, map[uint32][]uint32{0: {16, encodingBfloat16}, 1: {16, encodingBfloat16}, 2: {32}}, components)
}

// 16-bit floats that the source names are those of the factors.
func TestNamedFloat16(t *testing.T) {
	source := strings.NewReplacer("enable", "enable f16; enable", "array<vec4<u32>>", "array<f16>", "array<vec4<f32>, 64>",
		"array<f16, 512>", "bitcast<vec4<f32>>(x[l])", "x[l]",
		"coop_mat16x16<f32, A>", "coop_mat16x16<f16, A>", "coop_mat16x16<f32, B>", "coop_mat16x16<f16, B>").Replace(matrices)
	c := compiler(t, "")
	for enable, want := range map[string][]uint32{"": {16}, target.Bfloat16Directive: {16, encodingBfloat16}} {
		m, err := c.Compile(enable+source, matrixFeatures)
		require.NoError(t, err)
		_, floats, components := declared(t, m)
		assert.ElementsMatch(t, [][]uint32{want, {32}}, floats)
		assert.Equal(t, map[uint32][]uint32{0: want, 1: want, 2: {32}}, components)
	}
}

// Matrices of the sizes that the source names come out, those that naga knows and others.
func TestMatricesOfAnySize(t *testing.T) {
	c := compiler(t, "")
	for _, size := range []struct{ m, n, k uint32 }{{16, 16, 16}, {8, 8, 8}, {8, 8, 16}, {8, 16, 16}, {16, 8, 16}, {16, 16, 8}} {
		of := target.CooperativeMatrix{M: int(size.m), N: int(size.n), K: int(size.k)}
		_, text, _ := strings.Cut(matrices, "\n")
		m, err := c.Compile(of.Directives()+strings.NewReplacer("coop_mat16x16<f32, A>", of.WGSL("A"), "coop_mat16x16<f32, B>",
			of.WGSL("B"), "coop_mat16x16<f32, C>", of.WGSL("C")).Replace(text), matrixFeatures)
		require.NoError(t, err)
		constants, sizes := map[uint32]uint32{}, map[uint32][2]uint32{}
		for rest := m.Code[5:]; len(rest) > 0; rest = rest[rest[0]>>16:] {
			switch in := instruction(rest[:rest[0]>>16]); in.op() {
			case opConstant:
				assert.Less(t, in[2], m.Code[3], "an id within the bound")
				constants[in[2]] = in[3]
			case opTypeMatrix:
				sizes[constants[in[6]]] = [2]uint32{constants[in[4]], constants[in[5]]}
			}
		}
		assert.Equal(t, map[uint32][2]uint32{0: {size.m, size.k}, 1: {size.k, size.n}, 2: {size.m, size.n}}, sizes)
	}
	_, err := c.Compile("enable gpupipe_matrices_8x16x7;\n"+matrices, matrixFeatures)
	assert.ErrorContains(t, err, "line 1")
}

func TestMistakesKeepTheirLine(t *testing.T) {
	_, err := compiler(t, "").Compile(target.Bfloat16Directive+"\nfn main() { let x: f32 = 1u; }", 0)
	assert.ErrorContains(t, err, "line 3: ")
}

// Only arrays in buffers have a layout.
func TestWorkgroupArraysHaveNoLayout(t *testing.T) {
	m, err := compiler(t, "").Compile(kernel, 0)
	require.NoError(t, err)
	laid := map[uint32]bool{}
	arrays := 0
	for rest := m.Code[5:]; len(rest) > 0; rest = rest[rest[0]>>16:] {
		switch in := instruction(rest[:rest[0]>>16]); in.op() {
		case opDecorate:
			laid[in[1]] = laid[in[1]] || in[2] == decorationArrayStride
		case opTypeArray:
			arrays++
			assert.False(t, laid[in[1]])
		}
	}
	assert.Equal(t, 2, arrays)
	valid(t, m)
}
