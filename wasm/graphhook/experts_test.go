package graphhook_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mixture of experts written op by op equals the sum over each token's experts of their products, weighted.
func TestMixtureOfExperts(t *testing.T) {
	const n, width, experts, k, outputs = rows, vocab, 4, 2, 3
	w := func(e, i, j int) float64 { return math.Sin(float64(1 + 17*e + 5*i + j)) } // [experts, outputs, width]
	score := func(token, e int) float64 { return math.Cos(float64(3*token + 7*e)) }
	g, err := graphhook.BuildLoss(graphhook.Inputs{Rows: n, Vocab: width}, func(b *graphhook.Builder) (graphhook.Handle, error) {
		p := &pen{b: b}
		constant := func(shape string, size int, at func(i int) float64) handle {
			data := ""
			for i := range size {
				data += fmt.Sprintf(`,"%x"`, at(i))
			}
			return p.op("constant", fmt.Sprintf(`{"shape":%s,"data":[%s]}`, shape, data[1:]))
		}
		x := p.input(graphhook.Logits)
		scores := constant(fmt.Sprintf("[%d,%d]", n, experts), n*experts, func(i int) float64 { return score(i/experts, i%experts) })
		weights := constant(fmt.Sprintf("[%d,%d,%d]", experts, outputs, width), experts*outputs*width, func(i int) float64 {
			return w(i/width/outputs, i/width%outputs, i%width)
		})
		values := p.op("top_k", fmt.Sprintf(`{"k":%d}`, k), scores)
		order := p.op("group_rows", fmt.Sprintf(`{"experts":%d}`, experts), values+1)
		place, offsets := order+1, order+2
		token := p.op("div", "", order, p.op("full", fmt.Sprintf(`{"value":%d,"dtype":"u32"}`, k)))
		y := p.op("grouped_matmul", `{"trans_b":true}`, p.op("take", "", x, token, place), weights, offsets)
		y = p.op("take", "", y, place, p.op("reshape", fmt.Sprintf(`{"shape":[%d,1]}`, n*k), order)) // [n, k, outputs]
		y = p.op("mul", "", y, p.op("reshape", fmt.Sprintf(`{"shape":[%d,%d,1]}`, n, k), values))
		return p.op("sum", `{"axes":[1,2]}`, y), p.err
	})
	require.NoError(t, err)

	x := graph.NewTensor(graph.T(graph.F32, n, width))
	for i := range x.Data {
		x.Data[i] = math.Sin(1.3 * float64(i))
	}
	out, err := eval.Run(g.Graph, map[string]*graph.Tensor{graphhook.Logits: x}, nil)
	require.NoError(t, err)
	for i := range n {
		first, second := math.Inf(-1), math.Inf(-1) // the k largest scores
		for e := range experts {
			switch s := score(i, e); {
			case s > first:
				first, second = s, first
			case s > second:
				second = s
			}
		}
		want := 0.0
		for e := range experts {
			if score(i, e) < second {
				continue
			}
			for o := range outputs {
				for j := range width {
					want += score(i, e) * w(e, o, j) * x.Data[i*width+j]
				}
			}
		}
		assert.InDelta(t, want, out[graphhook.Output].Data[i], 1e-5, "token %d", i)
	}
}
