package model_test

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

// placed is a token of a list: its slot and its position.
type placed struct{ id, slot, position float64 }

// list makes the inputs of a BatchDecoder's program of n tokens. Tokens that are missing are in no slot.
func list(n int, tokens ...placed) map[string]*graph.Tensor {
	in := map[string]*graph.Tensor{}
	for _, name := range []string{model.TokensInput, model.SlotInput, model.PositionInput} {
		in[name] = graph.NewTensor(graph.T(graph.U32, n))
	}
	for i := range n {
		p := placed{slot: 1 << 30, position: 1 << 30}
		if i < len(tokens) {
			p = tokens[i]
		}
		in[model.TokensInput].Data[i], in[model.SlotInput].Data[i], in[model.PositionInput].Data[i] = p.id, p.slot, p.position
	}
	return in
}

// slotsAgree checks that texts that are decoded together have the losses of whole sequences, whichever programs took
// their tokens.
func slotsAgree(t *testing.T, c model.Config) {
	t.Helper()
	const slots = 3
	d, err := c.BatchDecoder(slots)
	require.NoError(t, err)
	whole, err := c.Eval(1, false)
	require.NoError(t, err)
	vars := initial(c, whole, d.Decode)
	for name, v := range vars {
		if strings.HasPrefix(name, "cache/") {
			for i := range v.Data {
				v.Data[i] = 1e6 // what an earlier text left must not matter
			}
		}
	}
	texts := []*graph.Tensor{ids(c, 1, 0), ids(c, 1, 3), ids(c, 1, 7)}
	var got [slots]float64
	add := func(slot, at int, logits []float64) {
		target := int(texts[slot].Data[(at+1)%c.SeqLen])
		got[slot] += (floats.LogSumExp(logits) - logits[target]) / float64(c.SeqLen)
	}
	// Slot 0 is scored as a block, slot 1 is filled up to its last token, slot 2 is decoded, and slot 0's text is there
	// all the time.
	block := func(slot, n int) (tokens []placed) {
		for i := range n {
			tokens = append(tokens, placed{texts[slot].Data[i], float64(slot), float64(i)})
		}
		return tokens
	}
	require.Equal(t, c.SeqLen, d.Block, "the sequence is one block")
	scores := run(t, d.Score, list(d.Block, block(0, c.SeqLen)...), vars)[model.LogitsOutput].Data
	for i := range c.SeqLen {
		add(0, i, scores[i*c.VocabSize:][:c.VocabSize])
	}
	assert.Empty(t, run(t, d.Fill, list(d.Block, block(1, c.SeqLen-1)...), vars))
	var last []float64 // the logits after the last token of slot 1
	for i := range c.SeqLen {
		mine := placed{texts[1].Data[c.SeqLen-1], 1, float64(c.SeqLen - 1)}
		logits := run(t, d.Decode, list(slots, placed{texts[2].Data[i], 2, float64(i)}, mine), vars)[model.LogitsOutput].Data
		add(2, i, logits[:c.VocabSize])
		if last != nil {
			assert.Equal(t, last, logits[c.VocabSize:2*c.VocabSize], "another text changes nothing")
		}
		last = logits[c.VocabSize : 2*c.VocabSize]
	}
	for slot, x := range got {
		targets := graph.NewTensor(texts[slot].Type)
		for i := range c.SeqLen {
			targets.Data[i] = texts[slot].Data[(i+1)%c.SeqLen]
		}
		want := run(t, whole, map[string]*graph.Tensor{"tokens": texts[slot], "targets": targets}, vars)["losses"].Data[0]
		if slot == 1 {
			want, x = lastLogit(t, c, texts[1], vars), last[0]
		}
		assert.InDelta(t, want, x, 1e-12, "slot %d", slot)
	}
}

// lastLogit is the logit of token 0 after a whole sequence.
func lastLogit(t *testing.T, c model.Config, text *graph.Tensor, vars map[string]*graph.Tensor) float64 {
	t.Helper()
	decode, err := c.Decode()
	require.NoError(t, err)
	all := initial(c, decode)
	for name, v := range vars {
		if !strings.HasPrefix(name, "cache/") {
			all[name] = v
		}
	}
	var logits []float64
	for i, id := range text.Data {
		in := map[string]*graph.Tensor{"tokens": graph.NewTensor(graph.T(graph.U32, 1, 1)),
			"position": graph.NewTensor(graph.T(graph.U32, 1))}
		in["tokens"].Data[0], in["position"].Data[0] = id, float64(i)
		logits = run(t, decode, in, all)["logits"].Data
	}
	return logits[0]
}

func TestBatchDecoderRefuses(t *testing.T) {
	_, err := small().BatchDecoder(0)
	assert.ErrorContains(t, err, "slots: found 0, expected at least 1")
	c := small()
	c.VocabSize = 0
	_, err = c.BatchDecoder(1)
	assert.Error(t, err)
}
