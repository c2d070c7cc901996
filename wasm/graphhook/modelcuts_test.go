package graphhook_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scribble builds a model of random ops and units on values [B, 4, 4].
func scribble(p *pen, seed uint64, batch int) handle {
	rng := rand.New(rand.NewPCG(seed, 0))
	p.unit("first")
	x := p.op("embedding", "", p.parameter("e", `{"std":1}`, 5, 4), p.input("tokens"))
	for u := range 2 + rng.IntN(3) {
		values := []handle{x}
		any := func() handle { return values[rng.IntN(len(values))] }
		heads := func(h handle) handle { return p.op("reshape", fmt.Sprintf(`{"shape":[%d,4,2,2]}`, batch), h) }
		flat := func(h handle) handle { return p.op("reshape", fmt.Sprintf(`{"shape":[%d,4,4]}`, batch), h) }
		w := p.parameter(fmt.Sprint("w", u), `{"std":0.5}`, 4, 4)
		b := p.parameter(fmt.Sprint("b", u), `{"init":"ones"}`, 4)
		if seed%2 == 1 { // what goes back to the unit before may be read by the gradient of this one's parameter
			values[0] = p.op("add", "", x, b)
		}
		for range 1 + rng.IntN(6) {
			switch rng.IntN(12) {
			case 0:
				values = append(values, p.op("matmul", `{"trans_b":true}`, any(), w))
			case 1:
				values = append(values, p.op("add", "", any(), b))
			case 2:
				values = append(values, p.op("tanh", "", any()))
			case 3:
				values = append(values, p.op("softmax", "", any()))
			case 4:
				values = append(values, p.op("mul", "", any(), p.op("mean", `{"axes":[2],"keep":true}`, any())))
			case 5:
				values = append(values, p.op("where", "", p.op("less", "", any(), any()), any(), p.op("scale", `{"factor":0.5}`, any())))
			case 6:
				values = append(values, p.op("add", "", any(), p.op("stop_gradient", "", any())))
			case 7:
				values = append(values, p.op("rms_norm", "", any(), b))
			case 8:
				values = append(values, p.op("layer_norm", `{"eps":0.1}`, any(), b, b))
			case 9:
				values = append(values, flat(p.op("rope", "", heads(any()))))
			case 10:
				values = append(values, flat(p.op("attention", "", heads(any()), heads(any()), heads(any()), p.input("segments"))))
			case 11:
				values = append(values, p.op("concat", `{"axis":2}`, p.op("slice", `{"axis":2,"start":0,"limit":1}`, any()),
					p.op("slice", `{"axis":2,"start":1,"limit":4}`, any())))
			}
		}
		x = p.op("add", "", p.op("matmul", "", values[0], w), p.op("mul", "", values[len(values)-1], b))
		switch seed % 3 { // the value passed to the next unit may be read by this one's backward pass
		case 1:
			x = p.op("tanh", "", x)
		case 2:
			x = p.op("softmax", "", x)
		}
		p.unit(fmt.Sprint("u", u))
	}
	return p.linear(x, "o", 1, 5, 4)
}

// The chunks of any model compute the same bits as the whole model, for every cut, with and without split backwards and
// recomputation.
func TestPartsOfAnyModelAreTheWhole(t *testing.T) {
	for seed := range uint64(60) {
		w, err := model.NewWritten(5, 4, func(batch int) (*model.Draft, error) {
			return graphhook.BuildModel(graphhook.Dims{Batch: batch, SeqLen: 4, Vocab: 5},
				write(func(p *pen) handle { return scribble(p, seed, batch) }))
		})
		require.NoError(t, err, seed)
		whole := inParts(t, w, nil, false, false)
		assert.Positive(t, whole["loss"].Data[0])
		for cut := 1; cut < w.Units(); cut++ {
			for _, recompute := range []bool{false, true} {
				assert.Equal(t, whole, inParts(t, w, []int{cut}, cut%2 == 1, recompute), "seed %d cut at %d", seed, cut)
			}
		}
		every := make([]int, w.Units()-1)
		for i := range every {
			every[i] = i + 1
		}
		assert.Equal(t, whole, inParts(t, w, every, true, false), seed)
	}
}

// inParts returns the loss and the gradients of a microbatch, computed chunk by chunk.
func inParts(t *testing.T, w *model.Written, cut []int, split, recompute bool) map[string]*graph.Tensor {
	t.Helper()
	bounds := slices.Concat([]int{0}, cut, []int{w.Units()})
	parts := make([]*model.Stage, len(bounds)-1)
	vars := make([]map[string]*graph.Tensor, len(parts))
	run := func(i int, g *graph.Graph) {
		_, err := eval.Run(g, nil, vars[i])
		require.NoError(t, err)
	}
	for i := range parts {
		var err error
		parts[i], err = w.Stage(model.StageOptions{First: bounds[i], Last: bounds[i+1], Batch: 2, Microbatches: 1, Recompute: recompute,
			Inputs: model.Inputs{Segments: true}})
		require.NoError(t, err)
		s := parts[i]
		gs := slices.DeleteFunc([]*graph.Graph{s.Forward, s.Backward, s.InputGrad, s.WeightGrad},
			func(g *graph.Graph) bool { return g == nil })
		vars[i] = state(w, gs...)
		for name, kind := range map[string]int{"tokens": 2, "targets": 3} { // of all parts the same
			if x := vars[i][name]; x != nil {
				for j := range x.Data {
					x.Data[j] = float64(kind * (j + 1) % 5)
				}
			}
		}
		if i > 0 {
			vars[i]["act/in"] = vars[i-1]["act/out"]
		}
		run(i, s.Forward)
	}
	all := map[string]*graph.Tensor{}
	for i, s := range slices.Backward(parts) {
		if i < len(parts)-1 {
			vars[i]["grad/out"] = vars[i+1]["grad/in"]
		}
		if split && s.InputGrad != nil {
			run(i, s.InputGrad)
			run(i, s.WeightGrad)
		} else {
			run(i, s.Backward)
		}
		for name, x := range vars[i] {
			if name == "loss" || strings.HasPrefix(name, "grad/") && name != "grad/in" && name != "grad/out" {
				all[name] = x
			}
		}
	}
	require.Len(t, all, 1+len(w.Parameters()))
	return all
}
