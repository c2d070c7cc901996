package unitname_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/unitname"
	"github.com/stretchr/testify/assert"
)

var units = []unitname.Unit{{Name: "embed"}, {"layers.0.self_attn", "layers.0"}, {"layers.0.mlp", "layers.0"},
	{"layers.1.self_attn", "layers.1"}, {"layers.1.mlp", "layers.1"}, {Name: "head"}}

func TestRange(t *testing.T) {
	for want, r := range map[string][2]int{
		"embed": {0, 1}, "embed to layers.0.self_attn": {0, 2}, "embed to layers.0": {0, 3}, "layers.0.self_attn": {1, 2},
		"layers.0": {1, 3}, "layers.0 to layers.1.self_attn": {1, 4}, "layers.0.mlp": {2, 3}, "layers.0.mlp to layers.1.self_attn": {2, 4},
		"layers.0.mlp to layers.1": {2, 5}, "layers.1 to head": {3, 6}, "layers.1.mlp to head": {4, 6}, "head": {5, 6}, "embed to head": {0, 6},
	} {
		assert.Equal(t, want, unitname.Range(units, r[0], r[1]))
	}
}

// Points and numbers lead back to their units.
func TestPoints(t *testing.T) {
	all := unitname.Points(units, []int{0, 1, 2, 3, 4, 5})
	assert.Equal(t, []string{"embed", "layers.0", "layers.0.mlp", "layers.1", "layers.1.mlp", "head"}, all)
	for i, name := range all {
		u, ok := unitname.Find(units, name)
		assert.True(t, ok)
		assert.Equal(t, i, u, name)
	}
	u, ok := unitname.Find(units, "layers.1.self_attn")
	assert.True(t, ok)
	assert.Equal(t, 3, u)
	_, ok = unitname.Find(units, "layers.2")
	assert.False(t, ok)
	assert.Equal(t, 4, unitname.Layers(units))
	for layer, want := range []int{0, 1, 3, 5} {
		u, ok := unitname.First(units, layer)
		assert.True(t, ok)
		assert.Equal(t, want, u)
	}
	_, ok = unitname.First(units, 4)
	assert.False(t, ok)
}

// A number means a layer by its place, so a layer whose name is another number is named by its place.
func TestPointsOfLayersWithNumbersAsNames(t *testing.T) {
	numbered := []unitname.Unit{{Name: "embed"}, {Name: "0"}, {"1.self_attn", "1"}, {"1.mlp", "1"}, {Name: "head"}}
	assert.Equal(t, []string{"embed", "1", "2", "1.mlp", "head"}, unitname.Points(numbered, []int{0, 1, 2, 3, 4}))
	u, ok := unitname.First(numbered, 2)
	assert.True(t, ok)
	assert.Equal(t, 2, u)
}
