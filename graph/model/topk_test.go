package model_test

import (
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

// The likeliest tokens are those of the logits that decoding gives, token by token.
func TestTopKAgreesWithDecoding(t *testing.T) {
	c := small()
	decode, err := c.Decode()
	require.NoError(t, err)
	for _, k := range []int{1, 4, c.VocabSize} {
		top, err := c.TopK(2, k, false)
		require.NoError(t, err)
		vars := initial(c, top, decode)
		tokens := ids(c, 2, 0)
		got := run(t, top, map[string]*graph.Tensor{"tokens": tokens}, vars)
		require.Equal(t, graph.T(graph.U32, 2*c.SeqLen, k), got["ids"].Type)
		for i, id := range tokens.Data {
			token, position := graph.NewTensor(graph.T(graph.U32, 1, 1)), graph.NewTensor(graph.T(graph.U32, 1))
			token.Data[0], position.Data[0] = id, float64(i%c.SeqLen)
			logits := run(t, decode, map[string]*graph.Tensor{"tokens": token, "position": position}, vars)["logits"].Data
			order := slices.SortedStableFunc(slices.Values(iota(len(logits))), func(a, b int) int {
				return map[bool]int{true: -1, false: 1}[logits[a] > logits[b]]
			})
			for j := range k {
				at := i*k + j
				assert.EqualValues(t, order[j], got["ids"].Data[at])
				assert.InDelta(t, logits[order[j]]-floats.LogSumExp(logits), got["logprobs"].Data[at], 1e-12)
			}
		}
	}
}

func iota(n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i
	}
	return x
}

// Equally likely tokens are in the order of their ids. If logits are NaN, the id is none of the vocabulary.
func TestTopKOfTies(t *testing.T) {
	c := small()
	top, err := c.TopK(1, 3, false)
	require.NoError(t, err)
	vars := initial(c, top)
	clear(vars["model.embed_tokens.weight"].Data)
	got := run(t, top, map[string]*graph.Tensor{"tokens": ids(c, 1, 0)}, vars)
	assert.Equal(t, []float64{0, 1, 2, 0, 1, 2}, got["ids"].Data[:6])
	for _, k := range []int{0, -1, c.VocabSize + 1} {
		_, err := c.TopK(1, k, false)
		assert.ErrorContains(t, err, "expected 1 to 11, the size of the vocabulary")
	}
}
