package eval_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type tensors = map[string]*graph.Tensor

func counter(t *testing.T) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 2))
		n := b.Input("n", graph.T(graph.U32))
		w := b.Variable("w", graph.T(graph.F32, 2))
		v := b.Variable("v", graph.T(graph.F32, 2))
		b.Output("old", w)
		b.Output("n", op.Add(n, op.Scalar(b, graph.U32, 1)))
		b.Assign(w, op.Add(w, op.Scale(x, 0.1)))
		b.Assign(v, w)
	})
	require.NoError(t, err)
	return g
}

func vector(xs ...float64) *graph.Tensor {
	return &graph.Tensor{Type: graph.T(graph.F32, len(xs)), Data: xs}
}

func number(d graph.DType, x float64) *graph.Tensor {
	return &graph.Tensor{Type: graph.T(d), Data: []float64{x}}
}

// Reads see the contents from before the run, also those that feed another assignment.
func TestAssignsHappenAtTheEnd(t *testing.T) {
	variables := tensors{"w": vector(1, 2), "v": vector(0, 0)}
	start := variables["w"]
	out, err := eval.Run(counter(t), tensors{"x": vector(10, 20), "n": number(graph.U32, math.MaxUint32)}, variables)
	require.NoError(t, err)
	assert.Equal(t, []float64{1, 2}, out["old"].Data)
	assert.Equal(t, []float64{0}, out["n"].Data, "u32 wraps")
	assert.Equal(t, []float64{2, 4}, variables["w"].Data)
	assert.Equal(t, []float64{1, 2}, variables["v"].Data)
	assert.Equal(t, []float64{1, 2}, start.Data)
}

func TestRounded(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Reciprocal(b.Input("x", graph.T(graph.F32))))
	})
	require.NoError(t, err)
	in := tensors{"x": number(graph.F32, 3)}
	out, err := eval.Run(g, in, nil, eval.Rounded)
	require.NoError(t, err)
	assert.Equal(t, float64(float32(1.0)/3), out["y"].Data[0])
	out, err = eval.Run(g, in, nil)
	require.NoError(t, err)
	assert.Equal(t, 1.0/3, out["y"].Data[0])
}

// 16-bit floats are always rounded, wherever they come from.
func TestFloat16IsRounded(t *testing.T) {
	for d, want := range map[graph.DType]float64{graph.F16: 0x1.554p-2, graph.BF16: 0x1.56p-2} {
		g, err := graph.Build(func(b *graph.Builder) {
			for i, x := range []*graph.Value{
				b.Input("x", graph.T(d)), b.Variable("v", graph.T(d)), b.Constant("c", graph.T(d), []float64{1.0 / 3}),
				op.Reciprocal(b.Input("three", graph.T(graph.F32))),
			} {
				b.Output(fmt.Sprint("y", i), op.Cast(x, d))
			}
		})
		require.NoError(t, err)
		vars := tensors{"v": number(d, 1.0/3)}
		out, err := eval.Run(g, tensors{"x": number(d, 1.0/3), "three": number(graph.F32, 3)}, vars)
		require.NoError(t, err)
		for name, y := range out {
			assert.Equal(t, want, y.Data[0], "%v %s", d, name)
		}
		assert.Equal(t, 1.0/3, vars["v"].Data[0], "what the caller gave stays")
	}
}

func TestRunRefuses(t *testing.T) {
	g := counter(t)
	for says, change := range map[string]func(in, vars tensors){
		`input "x" is missing, expected f32[2]`: func(in, _ tensors) { delete(in, "x") },
		`variable "w" is missing`:               func(_, vars tensors) { delete(vars, "w") },
		`input "x" is f32[3], expected f32[2]`:  func(in, _ tensors) { in["x"] = vector(1, 2, 3) },
		`input "n" is i32[], expected u32[]`:    func(in, _ tensors) { in["n"] = number(graph.I32, 1) },
		`variable "v" has 1 values, expected 2`: func(_, vars tensors) {
			vars["v"] = &graph.Tensor{Type: graph.T(graph.F32, 2),
				Data: []float64{1}}
		},
		`element 0 is 0.5, expected a value of u32`:       func(in, _ tensors) { in["n"] = number(graph.U32, 0.5) },
		`input "n": element 0 is -1, expected a value of`: func(in, _ tensors) { in["n"] = number(graph.U32, -1) },
		`element 0 is NaN`: func(in, _ tensors) { in["n"] = number(graph.U32, math.NaN()) },
	} {
		in := tensors{"x": vector(1, 2), "n": number(graph.U32, 1)}
		vars := tensors{"w": vector(1, 2), "v": vector(3, 4)}
		change(in, vars)
		w := vars["w"]
		_, err := eval.Run(g, in, vars)
		assert.ErrorContains(t, err, says)
		assert.Same(t, w, vars["w"])
	}
}
