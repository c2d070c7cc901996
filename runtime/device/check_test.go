package device

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWorkgroupSizeOfSource(t *testing.T) {
	for src, want := range map[string][3]int{
		"@compute @workgroup_size(64) fn main() {}":           {64, 1, 1},
		"@workgroup_size( 8u , 4 ) fn":                        {8, 4, 1},
		"@workgroup_size(2,3,4,)":                             {2, 3, 4},
		"// @workgroup_size(1)\n@workgroup_size(16, 16) fn x": {16, 16, 1},
	} {
		got, ok := workgroupSize(src)
		assert.True(t, ok, src)
		assert.Equal(t, want, got, src)
	}
	for _, src := range []string{"", "@workgroup_size(N)", "@workgroup_size(1) @workgroup_size(2)",
		"@workgroup_size(99999999999999999999)"} {
		_, ok := workgroupSize(src)
		assert.False(t, ok, src)
	}
}

func TestWorkgroupMemoryOfSource(t *testing.T) {
	for src, want := range map[string]int64{
		"var<workgroup> a: array<f32, 256>;":                                      1024,
		"var<workgroup> a : array<vec4<f32>, 16u>; var < workgroup > b: u32;":     260,
		"var<workgroup> a: array<array<vec2f, 8>, 4>;":                            256,
		"var<workgroup> a: array<vec3<f32>, 2>; var<workgroup> b: vec3<f32>;":     44,
		"var<workgroup> a: array<atomic<u32>, 2>;":                                8,
		"var<workgroup> a: array<f32, N>; var<workgroup> s: Struct;":              0,
		"// var<workgroup> a: array<f32, 256>;\nvar<storage> b: array<f32, 256>;": 0,
		"var<workgroup> a: array<f32, -5>; var<workgroup> b: array<vec<, 3>;":     0,
	} {
		assert.Equal(t, want, workgroupMemory(src), src)
	}
}

func FuzzSourceChecks(f *testing.F) {
	f.Add("var<workgroup> a: array<array<vec2f, 8>, 4>; @workgroup_size(8, 8)")
	f.Add("var<workgroup> a: vec>;")
	f.Fuzz(func(t *testing.T, src string) {
		workgroupSize(src)
		assert.GreaterOrEqual(t, workgroupMemory(src), int64(0))
	})
}

func TestErrorNamesEverything(t *testing.T) {
	err := error(&Error{Op: "compile", Object: "matmul", Device: "webgpu:0", Cause: Invalid("line %d", 3)})
	assert.Equal(t, `webgpu:0: compile "matmul": validation failed: line 3`, err.Error())
	assert.ErrorIs(t, err, ErrValidation)
}
