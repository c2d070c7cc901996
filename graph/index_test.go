package graph_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/assert"
)

func TestViewsCancel(t *testing.T) {
	row, col := graph.Var("row", 6*128, 1), graph.Var("col", 64, 2)
	at := append(graph.Unflatten(graph.Shape{6, 128}, row), col)
	flat := graph.Flatten(graph.Shape{6, 128, 64}, at)
	assert.Equal(t, "col + row*64u", flat.String())
	back := graph.Unflatten(graph.Shape{768, 64}, flat)
	assert.Equal(t, "row", back[0].String())
	assert.Equal(t, "col", back[1].String())
	heads := graph.Unflatten(graph.Shape{6, 128, 4, 16}, flat)
	assert.Equal(t, "(row)/128u", heads[0].String())
	assert.Equal(t, "(row)%128u", heads[1].String())
	assert.Equal(t, "(col)/16u", heads[2].String())
	assert.Equal(t, "(col)%16u", heads[3].String())
	assert.Equal(t, flat.String(), graph.Flatten(graph.Shape{6, 128, 4, 16}, heads).String())
	i := graph.Var("i", 6*128*64, 1)
	assert.Equal(t, "i", graph.Flatten(graph.Shape{768, 4, 16}, graph.Unflatten(graph.Shape{768, 4, 16}, i)).String())
	assert.Equal(t, "i", graph.Flatten(graph.Shape{6, 128, 4, 16}, graph.Unflatten(graph.Shape{6, 128, 4, 16}, i)).String())
}
