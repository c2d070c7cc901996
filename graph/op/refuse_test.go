package op_test

import (
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/stretchr/testify/assert"
)

// Every op refuses too few and far too many inputs, inputs of no sensible shape or dtype never make it panic, and what
// it accepts has extents that are checked.
func TestShapeRulesAreTotal(t *testing.T) {
	odd := []graph.Type{
		graph.T(graph.F32), graph.T(graph.U32), graph.T(graph.U32, 1), graph.T(graph.U32, 2), graph.T(graph.I32, 2, 3),
		graph.T(graph.F32, 1), graph.T(graph.F32, 5), graph.T(graph.BF16, 2, 3), graph.T(graph.F16, 2, 3, 4, 6),
		graph.T(graph.F32, 65536, 65535),
	}
	forEachCase(t, func(t *testing.T, c graph.Case) {
		if len(c.Inputs) > 0 && c.Op.Name() != "concat" {
			_, err := c.Op.Infer(c.Inputs[:len(c.Inputs)-1])
			if !optionalInputs[c.Op.Name()] {
				assert.Error(t, err)
			}
		}
		_, err := c.Op.Infer(nil)
		assert.Equal(t, len(c.Inputs) > 0, err != nil)
		if c.Op.Name() != "concat" {
			_, err = c.Op.Infer(make([]graph.Type, 9))
			assert.Error(t, err)
		}
		for i := range c.Inputs {
			in := append([]graph.Type{}, c.Inputs...)
			for _, in[i] = range odd {
				_, err := c.Op.Infer(in)
				_ = err // either answer; a panic fails
			}
		}
	})
}

func TestShapeRulesRefuse(t *testing.T) {
	f := func(shape ...int) graph.Type { return graph.T(graph.F32, shape...) }
	u := func(shape ...int) graph.Type { return graph.T(graph.U32, shape...) }
	newOp := func(name string) graph.Op {
		all := op.Catalogue()
		return all[slices.IndexFunc(all, func(o graph.Op) bool { return o.Name() == name })]
	}
	for what, c := range map[string]struct {
		o    graph.Op
		in   []graph.Type
		says string
	}{
		"add of two shapes":                {newOp("add"), []graph.Type{f(2), f(3)}, "input 1 is f32[3], expected f32[2]"},
		"add of two dtypes":                {newOp("add"), []graph.Type{f(2), u(2)}, "input 1 is u32[2]"},
		"exp of integers":                  {newOp("exp"), []graph.Type{u(2)}, "not defined for u32"},
		"neg of u32":                       {newOp("neg"), []graph.Type{u(2)}, "not defined for u32"},
		"and of floats":                    {newOp("and"), []graph.Type{f(2), f(2)}, "not defined for f32"},
		"softcap of 0":                     {&op.SoftcapOp{}, []graph.Type{f(2)}, "cap is 0, expected a number above 0"},
		"clamp upside down":                {&op.ClampOp{Low: 1, High: 0}, []graph.Type{f(2)}, "low ≤ high"},
		"clamp by NaN":                     {&op.ClampOp{Low: graph.Real(math.NaN())}, []graph.Type{f(2)}, "low ≤ high"},
		"scale of u32":                     {&op.ScaleOp{}, []graph.Type{u(2)}, "float"},
		"where on floats":                  {newOp("where"), []graph.Type{f(2), f(2), f(2)}, "condition"},
		"where of two shapes":              {newOp("where"), []graph.Type{u(2), f(2), f(3)}, "input 1"},
		"full of half a u32":               {&op.FullOp{Type: u(2), Value: 0.5}, nil, "0.5"},
		"full of -1 u32":                   {&op.FullOp{Type: u(2), Value: -1}, nil, "-1"},
		"iota beyond":                      {&op.IotaOp{Type: u(2), Axis: 1}, nil, "axis is 1"},
		"random of a short key":            {&op.RandomBitsOp{}, []graph.Type{u(1)}, "key"},
		"dropout of everything":            {&op.DropoutOp{P: 1}, []graph.Type{f(2), u(2)}, "probability"},
		"dropout by NaN":                   {&op.DropoutOp{P: graph.Real(math.NaN())}, []graph.Type{f(2), u(2)}, "probability"},
		"broadcast down":                   {&op.BroadcastOp{Shape: graph.Shape{3}}, []graph.Type{f(2, 3)}, "broadcast"},
		"broadcast of 2 to 3":              {&op.BroadcastOp{Shape: graph.Shape{3}}, []graph.Type{f(2)}, "broadcast"},
		"reshape":                          {&op.ReshapeOp{Shape: graph.Shape{5}}, []graph.Type{f(2, 3)}, "6 elements"},
		"reshape to negatives":             {&op.ReshapeOp{Shape: graph.Shape{-2, -3}}, []graph.Type{f(2, 3)}, "extent -2"},
		"permute twice":                    {&op.PermuteOp{Axes: []int{0, 0}}, []graph.Type{f(2, 3)}, "axes"},
		"permute too few":                  {&op.PermuteOp{Axes: []int{0}}, []graph.Type{f(2, 3)}, "axes"},
		"slice backwards":                  {&op.SliceOp{Start: 2, Limit: 1}, []graph.Type{f(5)}, "[2, 1)"},
		"slice beyond":                     {&op.SliceOp{Start: 2, Limit: 6}, []graph.Type{f(5)}, "[2, 6)"},
		"slice of no axis":                 {&op.SliceOp{Axis: -1, Limit: 1}, []graph.Type{f(5)}, "axis is -1"},
		"concat of two ranks":              {&op.ConcatOp{}, []graph.Type{f(5), f(5, 1)}, "input 1"},
		"concat of two widths":             {&op.ConcatOp{}, []graph.Type{f(5, 2), f(5, 1)}, "input 1"},
		"concat of scalars":                {&op.ConcatOp{}, []graph.Type{f(), f()}, "axis is 0"},
		"negative padding":                 {&op.PadOp{Low: -1}, []graph.Type{f(5)}, "-1"},
		"sum over nothing":                 {newOp("sum"), []graph.Type{f(5)}, "no axes"},
		"matmul of vectors":                {&op.MatMulOp{}, []graph.Type{f(5), f(5)}, "two axes"},
		"matmul of inner extents":          {&op.MatMulOp{}, []graph.Type{f(2, 3), f(2, 3)}, "3 and 2 differ"},
		"symmetric matmul of extents":      {&op.MatMulOp{Symmetric: true}, []graph.Type{f(2, 3), f(3, 4)}, "expected square matrices"},
		"symmetric matmul of a batch":      {&op.MatMulOp{Symmetric: true}, []graph.Type{f(2, 3, 3), f(3, 3)}, "of one shape"},
		"matmul of batches":                {&op.MatMulOp{}, []graph.Type{f(2, 3, 3), f(4, 3, 3)}, "leading"},
		"matmul of two 16-bit floats":      {&op.MatMulOp{}, []graph.Type{graph.T(graph.F16, 3, 3), graph.T(graph.BF16, 3, 3)}, "one dtype"},
		"cast of integers to half":         {&op.CastOp{To: graph.F16}, []graph.Type{u(2)}, "cast to f32 between"},
		"cast of 16-bit floats to integer": {&op.CastOp{To: graph.I32}, []graph.Type{graph.T(graph.BF16, 2)}, "cast to f32 between"},
		"matmul of integers":               {&op.MatMulOp{}, []graph.Type{u(3, 3), u(3, 3)}, "float"},
		"qr of a wide matrix":              {newOp("qr"), []graph.Type{f(2, 3)}, "at least as many rows"},
		"qr of a vector":                   {newOp("qr"), []graph.Type{f(3)}, "expected f32[..., rows, columns]"},
		"eigh of a tall matrix":            {newOp("eigh"), []graph.Type{f(3, 2)}, "expected f32[..., n, n]"},
		"eigh of f16":                      {newOp("eigh"), []graph.Type{graph.T(graph.F16, 3, 3)}, "expected f32[..., n, n]"},
		"softmax of a scalar":              {newOp("softmax"), []graph.Type{f()}, "axis"},
		"norm of another width":            {&op.RMSNormOp{}, []graph.Type{f(2, 3), f(2)}, "expected f32[3]"},
		"norm by a negative eps":           {&op.LayerNormOp{Eps: -1}, []graph.Type{f(2, 3), f(3), f(3)}, "eps"},
		"rope of an odd width":             {&op.RoPEOp{}, []graph.Type{f(1, 2, 1, 3), f(2, 1), f(2, 1)}, "even"},
		"rope of short tables":             {&op.RoPEOp{}, []graph.Type{f(1, 3, 1, 2), f(2, 1), f(2, 1)}, "2 positions"},
		"pick of another length":           {newOp("pick"), []graph.Type{f(2, 3), u(3)}, "expected u32[2]"},
		"cross-entropy of 3 axes":          {&op.CrossEntropyOp{}, []graph.Type{f(1, 2, 3), u(2)}, "[tokens, vocabulary]"},
		"cross-entropy of -2":              {&op.CrossEntropyOp{Ignore: -2}, []graph.Type{f(2, 3), u(2)}, "-2"},
		"cross-entropy of i32":             {&op.CrossEntropyOp{}, []graph.Type{f(2, 3), graph.T(graph.I32, 2)}, "targets"},
		"cross-entropy of u32 odds":        {&op.CrossEntropyOp{}, []graph.Type{f(2, 3), u(2), u(2)}, "weights"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := c.o.Infer(c.in)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// The wrappers' mistakes come out of Build as errors.
func TestWrappersRefuse(t *testing.T) {
	for says, f := range map[string]func(b *graph.Builder, x *graph.Value){
		"do not broadcast": func(b *graph.Builder, x *graph.Value) { op.Add(x, op.Full(b, graph.F32, 0, 2)) },
		"does not reshape": func(b *graph.Builder, x *graph.Value) { op.Reshape(x, -1, 5) },
		"axis is 7":        func(b *graph.Builder, x *graph.Value) { op.Sum(x, []int{7}, true) },
		"axis is -1":       func(b *graph.Builder, x *graph.Value) { op.Slice(x, -1, 0, 3) },
		"two axes":         func(b *graph.Builder, x *graph.Value) { op.MatMul(x, x, false, false) },
		"fewer than two":   func(b *graph.Builder, x *graph.Value) { op.Transpose(x) },
		"[7]":              func(b *graph.Builder, x *graph.Value) { op.Broadcast(x, 7) },
		"expected one of":  func(b *graph.Builder, x *graph.Value) { op.Softmax(op.Sum(x, nil, false)); op.Iota(b, graph.U32, 3, 2) },
		"layer1: exp":      func(b *graph.Builder, x *graph.Value) { b.Scope("layer1", func() { op.Exp(op.Cast(x, graph.U32)) }) },
	} {
		_, err := graph.Build(func(b *graph.Builder) { f(b, b.Input("x", graph.T(graph.F32, 3))) })
		assert.Error(t, err, says)
		if says != "expected one of" {
			assert.ErrorContains(t, err, says)
		}
	}
}

// optionalInputs names the ops whose last input may be left out.
var optionalInputs = map[string]bool{"cross_entropy": true, "rope": true, "attention": true, "attention_grad": true}
