package hooks

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writeWords builds a model of single tokens, or one that adds the numbers of their documents.
func writeWords(documents bool) func(batch int) (*model.Draft, error) {
	return func(batch int) (*model.Draft, error) {
		d := &model.Draft{Units: []string{"embed", "head"}, Parameters: []model.Parameter{
			{Name: "embed", Type: graph.T(graph.F32, 16, 8), Unit: "embed"}, {Name: "head", Type: graph.T(graph.F32, 16, 8),
				Unit: "head"}}}
		g, err := graph.Build(func(b *graph.Builder) {
			ids := graph.T(graph.U32, batch, 4)
			embed, head := b.Variable("embed", d.Parameters[0].Type), b.Variable("head", d.Parameters[1].Type)
			var x *graph.Value
			b.Scope("embed", func() {
				if x = op.Embedding(embed, b.Input(model.TokensInput, ids)); documents {
					x = op.Add(x, op.Embedding(embed, b.Input(model.SegmentsInput, ids)))
				}
			})
			b.Scope("head", func() { b.Output(model.LogitsOutput, op.MatMul(x, head, false, true)) })
		})
		d.Graph = g
		return d, err
	}
}

func TestDocumentMaskNeedsSegments(t *testing.T) {
	h := writeModule(t, hook.BuildModel)
	s, err := Open([]config.Hook{h}, Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	check := func(documents, mask bool) error {
		m, err := model.NewWritten(16, 4, writeWords(documents))
		require.NoError(t, err)
		return s.checkSegments(config.Config{Data: config.Data{DocumentMask: mask}}, m)
	}
	assert.NoError(t, check(true, true))
	assert.NoError(t, check(false, false))
	assert.EqualError(t, check(false, true), "hook "+h.File+`: build_model: the model does not read the input "segments", expected one that does with data.document_mask`)
}
