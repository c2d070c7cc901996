package split_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/plan"
	"github.com/gpupipe/gpupipe/graph/split"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// byScope is the class of a node in scope "0", "1", …; sources are of class 0.
func byScope(n *graph.Node) int {
	if n.Scope == "" {
		return 0
	}
	return int(n.Scope[0] - '0')
}

func build(t *testing.T, f func(b *graph.Builder)) *graph.Graph {
	t.Helper()
	g, err := graph.Build(f)
	require.NoError(t, err)
	return g
}

// in runs f in a scope and returns its value.
func in(b *graph.Builder, scope string, f func() *graph.Value) (v *graph.Value) {
	b.Scope(scope, func() { v = f() })
	return v
}

func ops(g *graph.Graph) string {
	var names []string
	for _, n := range g.Nodes {
		if s, ok := n.Op.(graph.Source); ok {
			names = append(names, s.Label())
		} else {
			names = append(names, n.Op.Name())
		}
	}
	return strings.Join(names, " ")
}

// copies counts what a program copies into variables.
func copies(t *testing.T, g *graph.Graph) int {
	t.Helper()
	r, err := fuse.Run(g, fuse.Options{MaxBindings: 8, OffsetAlignment: 256})
	require.NoError(t, err)
	p, err := plan.Run(r, func(*fuse.Group) []int64 { return nil },
		target.Limits{MaxBindingSize: 128 << 20, MaxBufferSize: 256 << 20, OffsetAlignment: 256})
	require.NoError(t, err)
	return len(p.Copies)
}

// chain is x → exp (0) → a view of it → tanh (1) → sigmoid of that and of exp (2).
func chain(b *graph.Builder) {
	x := b.Input("x", graph.T(graph.F32, 4, 3))
	w := b.Variable("w", graph.T(graph.F32, 12))
	e := in(b, "0", func() *graph.Value { return op.Mul(op.Exp(x), op.Reshape(w, 4, 3)) })
	flat := in(b, "0", func() *graph.Value { return op.Permute(op.Reshape(e, 3, 4), 1, 0) })
	s := in(b, "1", func() *graph.Value { return op.Tanh(flat) })
	b.Output("s", s)
	in(b, "2", func() *graph.Value {
		y := op.Mul(op.Sigmoid(s), op.Add(flat, op.Scalar(b, graph.F32, 2)))
		b.Output("y", y)
		b.Assign(w, op.Reshape(y, 12))
		return y
	})
}

func values(t graph.Type) *graph.Tensor {
	x := graph.NewTensor(t)
	for i := range x.Data {
		x.Data[i] = float64(i%5)/4 - 0.3
	}
	return x
}

func TestProgramsDoWhatTheGraphDoes(t *testing.T) {
	g := build(t, chain)
	inputs := map[string]*graph.Tensor{"x": values(graph.T(graph.F32, 4, 3))}
	fresh := func() map[string]*graph.Tensor {
		return map[string]*graph.Tensor{"w": values(graph.T(graph.F32, 12))}
	}
	want := fresh()
	wantOut, err := eval.Run(g, inputs, want)
	require.NoError(t, err)
	for _, phases := range [][]split.Phase{
		{{Own: []int{0, 1, 2}}},
		{{Own: []int{0}, Stash: "a/"}, {Own: []int{1}, Stash: "b/"}, {Own: []int{2}}},
		{{Own: []int{0, 1}, Stash: "a/"}, {Own: []int{2}}},
		{{Own: []int{0}}, {Own: []int{1}, Recompute: []int{0}, Stash: "b/"}, {Own: []int{2}}},
		{{Own: []int{0}}, {Own: []int{1}, Recompute: []int{0}}, {Own: []int{2}, Recompute: []int{1, 0}}},
	} {
		programs, err := split.Run(g, byScope, phases)
		require.NoError(t, err)
		got, out := fresh(), map[string]*graph.Tensor{}
		for _, p := range programs {
			for _, s := range p.Stash {
				got[s.ID] = graph.NewTensor(s.Type)
			}
			o, err := eval.Run(p.Graph, inputs, got)
			require.NoError(t, err)
			for name, x := range o {
				out[name] = x
			}
			assert.LessOrEqual(t, copies(t, p.Graph), copies(t, g))
		}
		assert.Equal(t, wantOut, out)
		assert.Equal(t, want["w"], got["w"])
	}
}

// Views, generators and sources are repeated: what is kept is what lies in memory.
func TestViewsAreNotKept(t *testing.T) {
	programs, err := split.Run(build(t, chain), byScope, []split.Phase{
		{Own: []int{0}, Stash: "a/"}, {Own: []int{1}, Stash: "b/"}, {Own: []int{2}},
	})
	require.NoError(t, err)
	assert.Equal(t, []graph.Named{{ID: "a/0", Type: graph.T(graph.F32, 4, 3)}}, programs[0].Stash, "the product, not its view")
	assert.Equal(t, []graph.Named{{ID: "b/0", Type: graph.T(graph.F32, 4, 3)}}, programs[1].Stash)
	assert.Empty(t, programs[2].Stash)
	assert.Equal(t, "x w exp reshape mul a/0", ops(programs[0].Graph))
	assert.Equal(t, "a/0 reshape permute tanh b/0", ops(programs[1].Graph))
	assert.Equal(t, "w a/0 reshape permute b/0 sigmoid full broadcast add mul reshape", ops(programs[2].Graph))
}

// The latest phase that has a value keeps it, so that a value is kept only between those that must be apart.
func TestRecomputedValuesAreKeptByTheLatest(t *testing.T) {
	programs, err := split.Run(build(t, chain), byScope, []split.Phase{
		{Own: []int{0}, Stash: "a/"}, {Own: []int{1}, Recompute: []int{0}, Stash: "b/"}, {Own: []int{2}},
	})
	require.NoError(t, err)
	assert.Empty(t, programs[0].Graph.Nodes)
	assert.Len(t, programs[1].Stash, 2)
}

// What the graph assigns to a variable of its own and a later phase needs is kept too, by one copy.
func TestWhatIsAssignedIsKeptToo(t *testing.T) {
	typ := graph.T(graph.F32, 4)
	programs, err := split.Run(build(t, func(b *graph.Builder) {
		e := in(b, "0", func() *graph.Value { return op.Exp(b.Variable("x", typ)) })
		b.Assign(b.Variable("v", typ), e)
		b.Output("y", in(b, "1", func() *graph.Value { return op.Neg(e) }))
	}), byScope, []split.Phase{{Own: []int{0}, Stash: "s/"}, {Own: []int{1}}})
	require.NoError(t, err)
	assert.Equal(t, []graph.Named{{ID: "s/0", Type: typ}}, programs[0].Stash)
	r, err := fuse.Run(programs[0].Graph, fuse.Options{MaxBindings: 8, OffsetAlignment: 256})
	require.NoError(t, err)
	p, err := plan.Run(r, func(*fuse.Group) []int64 { return nil },
		target.Limits{MaxBindingSize: 128 << 20, MaxBufferSize: 256 << 20, OffsetAlignment: 256})
	require.NoError(t, err)
	assert.Equal(t, []plan.Copy{{From: plan.Storage{Space: plan.Variable, Name: "v", Size: 16},
		To: plan.Storage{Space: plan.Variable, Name: "s/0", Size: 16}}}, p.Copies)
	assert.Empty(t, p.Chunks, "nothing else takes memory")
	vars := map[string]*graph.Tensor{"x": values(typ), "v": graph.NewTensor(typ), "s/0": graph.NewTensor(typ)}
	_, err = eval.Run(programs[0].Graph, nil, vars)
	require.NoError(t, err)
	out, err := eval.Run(programs[1].Graph, nil, vars)
	require.NoError(t, err)
	assert.InDelta(t, -math.Exp(-0.3), out["y"].Data[0], 1e-12)
	assert.Equal(t, vars["v"].Data, vars["s/0"].Data)
}

func TestRunRefuses(t *testing.T) {
	typ := graph.T(graph.F32, 4)
	two := []split.Phase{{Own: []int{0}, Stash: "s/"}, {Own: []int{1}}}
	for name, c := range map[string]struct {
		build  func(b *graph.Builder)
		phases []split.Phase
		want   string
	}{
		"assigned, then read": {func(b *graph.Builder) {
			v := b.Variable("v", typ)
			b.Assign(v, in(b, "0", func() *graph.Value { return op.Exp(v) }))
			b.Output("y", in(b, "1", func() *graph.Value { return op.Neg(v) }))
		}, two, `phase 1 reads variable "v" f32[4], which phase 0 has assigned`},
		"assigned, then read through a view": {func(b *graph.Builder) {
			v := b.Variable("v", typ)
			b.Assign(v, in(b, "0", func() *graph.Value { return op.Exp(v) }))
			b.Output("y", in(b, "1", func() *graph.Value { return op.Neg(in(b, "0", func() *graph.Value { return op.Reshape(v, 2, 2) })) }))
		}, two, `phase 1 reads variable "v" f32[4], which phase 0 has assigned`},
		"assigned, then read by recomputation": {func(b *graph.Builder) {
			v := b.Variable("v", typ)
			e := in(b, "0", func() *graph.Value { return op.Exp(v) })
			b.Assign(v, in(b, "0", func() *graph.Value { return op.Neg(e) }))
			b.Output("y", in(b, "1", func() *graph.Value { return op.Neg(e) }))
		}, []split.Phase{{Own: []int{0}}, {Own: []int{1}, Recompute: []int{0}}},
			`phase 1 reads variable "v" f32[4], which phase 0 has assigned`},
		"backwards": {func(b *graph.Builder) {
			e := in(b, "1", func() *graph.Value { return op.Exp(b.Input("x", typ)) })
			b.Output("y", in(b, "0", func() *graph.Value { return op.Neg(e) }))
		}, two, "phase 0 needs exp#1 f32[4] of class 1, which no earlier phase computes"},
		"no owner": {func(b *graph.Builder) {
			b.Output("y", in(b, "7", func() *graph.Value { return op.Exp(b.Input("x", typ)) }))
		}, two, "output y is of class 7, which no phase owns"},
		"two owners": {func(*graph.Builder) {}, []split.Phase{{Own: []int{1}}, {Own: []int{0, 1}}}, "class 1 is owned by phases 0 and 1"},
		"a name twice": {func(b *graph.Builder) {
			e := in(b, "0", func() *graph.Value { return op.Exp(b.Variable("s/0", typ)) })
			b.Output("y", in(b, "1", func() *graph.Value { return op.Neg(e) }))
		}, two, `the name "s/0", which is a variable's`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := split.Run(build(t, c.build), byScope, c.phases)
			assert.ErrorContains(t, err, c.want)
		})
	}
}

// A variable may be read by what comes before its assignment, and by the phase that assigns it.
func TestAccumulatorsStayWithTheirPart(t *testing.T) {
	typ := graph.T(graph.F32, 4)
	g := build(t, func(b *graph.Builder) {
		v := b.Variable("v", typ)
		e := in(b, "0", func() *graph.Value { return op.Exp(v) })
		b.Assign(v, in(b, "1", func() *graph.Value { return op.Add(v, e) }))
	})
	programs, err := split.Run(g, byScope, []split.Phase{{Own: []int{0}, Stash: "s/"}, {Own: []int{1}}})
	require.NoError(t, err)
	vars := map[string]*graph.Tensor{"v": values(typ), "s/0": graph.NewTensor(typ)}
	want := map[string]*graph.Tensor{"v": values(typ)}
	_, err = eval.Run(g, nil, want)
	require.NoError(t, err)
	for _, p := range programs {
		_, err = eval.Run(p.Graph, nil, vars)
		require.NoError(t, err)
	}
	assert.Equal(t, want["v"], vars["v"])
}
