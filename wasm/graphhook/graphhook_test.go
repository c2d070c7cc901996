package graphhook_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const rows, vocab = 3, 5

// attempt applies one op to "logits" (1), "targets" (2) and their log-softmax (3).
func attempt(name string, attributes string, inputs ...graphhook.Handle) (h graphhook.Handle, got graph.Type, err error) {
	_, err = graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab}, func(b *graphhook.Builder) (graphhook.Handle, error) {
		prepare(b)
		if h, err = b.Op(name, inputs, []byte(attributes)); err != nil {
			return 0, err
		}
		got, err = b.Type(h)
		return 0, err
	})
	if err != nil && strings.Contains(err.Error(), "the loss: there is no value 0") {
		err = nil
	}
	return h, got, err
}

func prepare(b *graphhook.Builder) {
	for _, name := range []string{"logits", "targets"} {
		if _, err := b.Input(name); err != nil {
			panic(err)
		}
	}
	if _, err := b.Op("log_softmax", []graphhook.Handle{1}, nil); err != nil {
		panic(err)
	}
}

// Modules can apply every op of the catalog, except those listed here.
func TestKindsAreTheCatalogue(t *testing.T) {
	left := map[string]string{
		"attention_grad": "a gradient", "grouped_matmul_reduce": "a gradient", "put_rows": "of generation's caches, without a gradient",
		"eigh": "of optimizers", "qr": "of optimizers",
		"embedding_grad": "a gradient", "random_bits": "needs a key",
		"dropout": "needs a key", "stochastic_round": "needs a key",
	}
	known := map[string]bool{}
	for _, k := range graphhook.Kinds() {
		known[k] = true
	}
	for _, o := range op.Catalogue() {
		_, out := left[o.Name()]
		assert.True(t, known[o.Name()] != out, o.Name())
	}
}

// Ops applied by name build the same graph as the functions of package op.
func TestOpsAreThoseOfGo(t *testing.T) {
	type values = []*graph.Value
	x := func(f func(x *graph.Value) *graph.Value) func(v values) *graph.Value {
		return func(v values) *graph.Value { return f(v[0]) }
	}
	for _, c := range []struct {
		name, attributes string
		inputs           []graphhook.Handle
		want             func(v values) *graph.Value // of logits, targets, log-softmax
	}{
		{"exp", "", []graphhook.Handle{1}, x(op.Exp)},
		{"sub", "", []graphhook.Handle{1, 3}, func(v values) *graph.Value { return op.Sub(v[0], v[2]) }},
		{"pick", "{}", []graphhook.Handle{3, 2}, func(v values) *graph.Value { return op.Pick(v[2], v[1]) }},
		{"sum", `{"axes":[-1],"keep":true}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Sum(v[0], []int{-1}, true) }},
		{"mean", "", []graphhook.Handle{1}, func(v values) *graph.Value { return op.Mean(v[0], nil, false) }},
		{"scale", `{"factor":"0x1.8p-1"}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Scale(v[0], 0.75) }},
		{"shift", `{"offset":-1e-3}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Shift(v[0], -1e-3) }},
		{"clamp", `{"low":"-inf","high":1}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Clamp(v[0], math.Inf(-1), 1) }},
		{"cast", `{"to":"f32"}`, []graphhook.Handle{2}, func(v values) *graph.Value { return op.Cast(v[1], graph.F32) }},
		{"reshape", `{"shape":[-1]}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Reshape(v[0], -1) }},
		{"broadcast", `{"shape":[2,3,5]}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Broadcast(v[0], 2, 3, 5) }},
		{"permute", `{"axes":[1,0]}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Permute(v[0], 1, 0) }},
		{"slice", `{"axis":1,"start":1,"limit":3}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Slice(v[0], 1, 1, 3) }},
		{"pad", `{"axis":0,"low":1,"high":2,"value":0}`, []graphhook.Handle{1},
			func(v values) *graph.Value { return op.Pad(v[0], 0, 1, 2, 0) }},
		{"concat", `{"axis":1}`, []graphhook.Handle{1, 3, 1}, func(v values) *graph.Value { return op.Concat(1, v[0], v[2], v[0]) }},
		{"squared_relu", "", []graphhook.Handle{1}, x(op.SquaredReLU)},
		{"softcap", `{"cap":30}`, []graphhook.Handle{1}, func(v values) *graph.Value { return op.Softcap(v[0], 30) }},
		{"top_k", `{"k":2}`, []graphhook.Handle{1}, func(v values) *graph.Value {
			y, _ := op.TopK(v[0], 2)
			return y
		}},
		{"matmul", `{"trans_b":true}`, []graphhook.Handle{1, 3}, func(v values) *graph.Value { return op.MatMul(v[0], v[2], false, true) }},
		{"full", `{"value":7,"dtype":"u32","shape":[2]}`, nil,
			func(v values) *graph.Value { return op.Full(v[0].Builder(), graph.U32, 7, 2) }},
		{"full", `{"value":0.1}`, nil, func(v values) *graph.Value { return op.Scalar(v[0].Builder(), graph.F32, 0.1) }},
		{"iota", `{"dtype":"u32","axis":1,"shape":[3,5]}`, nil,
			func(v values) *graph.Value { return op.Iota(v[0].Builder(), graph.U32, 1, 3, 5) }},
		{"constant", `{"shape":[2],"data":[1,"nan"]}`, nil, func(v values) *graph.Value {
			return v[0].Builder().Constant("hook/constant/1", graph.T(graph.F32, 2), []float64{1, math.NaN()})
		}},
		{"cross_entropy", "", []graphhook.Handle{1, 2}, func(v values) *graph.Value {
			y, _ := op.CrossEntropy(v[0], v[1], op.CrossEntropyOptions{Ignore: -1})
			return y
		}},
		{"cross_entropy", `{"ignore":0,"z_loss":0.5}`, []graphhook.Handle{1, 2}, func(v values) *graph.Value {
			y, _ := op.CrossEntropy(v[0], v[1], op.CrossEntropyOptions{Ignore: 0, ZLoss: 0.5})
			return y
		}},
		{"stop_gradient", "", []graphhook.Handle{1}, x(op.StopGradient)},
	} {
		name := c.name + c.attributes
		scored := func(b *graph.Builder, y *graph.Value, logits *graph.Value) *graph.Value {
			return op.Add(op.Sum(op.Cast(y, graph.F32), nil, false), op.Sum(logits, nil, false))
		}
		want, err := graph.Build(func(b *graph.Builder) {
			logits, targets := b.Input("logits", graph.T(graph.F32, rows, vocab)), b.Input("targets", graph.T(graph.U32, rows))
			y := c.want(values{logits, targets, op.LogSoftmax(logits)})
			b.Output("loss", scored(b, y, logits))
		})
		require.NoError(t, err, name)
		got, err := graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab}, func(b *graphhook.Builder) (graphhook.Handle, error) {
			prepare(b)
			h, err := b.Op(c.name, c.inputs, []byte(c.attributes))
			for _, next := range []struct {
				op         string
				attributes string
				more       []graphhook.Handle
			}{{"cast", `{"to":"f32"}`, nil}, {"sum", "", nil}} {
				if err == nil {
					h, err = b.Op(next.op, []graphhook.Handle{h}, []byte(next.attributes))
				}
			}
			if err != nil {
				return 0, err
			}
			sum, err := b.Op("sum", []graphhook.Handle{1}, nil)
			if err != nil {
				return 0, err
			}
			return b.Op("add", []graphhook.Handle{h, sum}, nil)
		})
		require.NoError(t, err, name)
		assert.Equal(t, hash(t, want), hash(t, got.Graph), name)
	}
}

func hash(t *testing.T, g *graph.Graph) string {
	t.Helper()
	h, err := graph.Hash(g)
	require.NoError(t, err)
	return h
}

func TestMistakesNameTheOp(t *testing.T) {
	big := fmt.Sprintf(`{"shape":[%d],"data":[]}`, 1<<40)
	for _, c := range []struct {
		want, name, attributes string
		inputs                 []graphhook.Handle
	}{
		{`unknown op "warp"`, "warp", "", nil},
		{`unknown op "input"`, "input", "", nil},
		{"add: found 1 inputs, expected 2", "add", "", []graphhook.Handle{1}},
		{"cross_entropy: found 1 inputs, expected 2 to 3", "cross_entropy", "", []graphhook.Handle{1}},
		{"concat: found 0 inputs, expected 1 to 64", "concat", `{"axis":0}`, nil},
		{"exp: input 0: there is no value 0, expected 1 to 3", "exp", "", []graphhook.Handle{0}},
		{"add: input 1: there is no value 4294967295", "add", "", []graphhook.Handle{1, math.MaxUint32}},
		{"add(f32[3,5], u32[3]): ", "add", "", []graphhook.Handle{1, 2}},
		{"exp(u32[3]): input is u32[3]: exp is not defined for u32", "exp", "", []graphhook.Handle{2}},
		{"pick(f32[3,5], f32[3,5]): input 1 is f32[3,5], expected u32[3]", "pick", "", []graphhook.Handle{1, 1}},
		{"mean(u32[3]): scale: input 0 is u32[], expected a float type", "mean", "", []graphhook.Handle{2}},
		{"sum(f32[3,5]): axis is 2, expected one of the 2 of shape [3,5]", "sum", `{"axes":[2]}`, []graphhook.Handle{1}},
		{"sum(f32[3,5]): axes are [1 1], expected ascending", "sum", `{"axes":[1,-1]}`, []graphhook.Handle{1}},
		{`sum: unknown attribute "axis", expected axes, keep`, "sum", `{"axis":1}`, []graphhook.Handle{1}},
		{`exp: unknown attribute "x", expected none`, "exp", `{"x":1}`, []graphhook.Handle{1}},
		{`scale: attribute "factor" is missing`, "scale", "", []graphhook.Handle{1}},
		{`scale: attribute "factor" is null`, "scale", `{"factor":null}`, []graphhook.Handle{1}},
		{`scale: unknown attribute "Factor"`, "scale", `{"Factor":1}`, []graphhook.Handle{1}},
		{`scale: attributes: found "two", expected a number`, "scale", `{"factor":"two"}`, []graphhook.Handle{1}},
		{"scale: attributes: found [], expected a number", "scale", `{"factor":[]}`, []graphhook.Handle{1}},
		{"scale: attributes: invalid character", "scale", `{"factor":1}}`, []graphhook.Handle{1}},
		{"scale: attributes: found array, expected an object", "scale", `[1]`, []graphhook.Handle{1}},
		{`cast: attributes: found dtype "16",`, "cast", `{"to":16}`, []graphhook.Handle{1}},
		{`reshape: attribute "shape": found number 1.5, expected integers`, "reshape", `{"shape":[1.5]}`, []graphhook.Handle{1}},
		{`reshape: attribute "shape": found string, expected a list`, "reshape", `{"shape":"all"}`, []graphhook.Handle{1}},
		{`sum: attribute "keep": found number, expected true or false`, "sum", `{"keep":1}`, []graphhook.Handle{1}},
		{`cast: attributes: found dtype "f16", expected f32, i32 or u32`, "cast", `{"to":"f16"}`, []graphhook.Handle{1}},
		{"clamp(f32[3,5]): the limits are", "clamp", `{"low":1,"high":"nan"}`, []graphhook.Handle{1}},
		{"reshape(f32[3,5]): [3,5] does not reshape to [-1,7]", "reshape", `{"shape":[-1,7]}`, []graphhook.Handle{1}},
		{"softcap(f32[3,5]): cap is 0, expected a number above 0", "softcap", `{"cap":0}`, []graphhook.Handle{1}},
		{"top_k(f32[3,5]): k is 6, expected 1 to 5", "top_k", `{"k":6}`, []graphhook.Handle{1}},
		{"group_rows(u32[3]): input 0 is u32[3], expected u32[tokens,choices]", "group_rows", `{"experts":2}`, []graphhook.Handle{2}},
		{"take(f32[3,5], u32[3], u32[3]): the inverse is u32[3]", "take", "", []graphhook.Handle{1, 2, 2}},
		{"grouped_matmul(f32[3,5], f32[3,5], u32[3]): input 1 is f32[3,5], expected 3 axes", "grouped_matmul", "",
			[]graphhook.Handle{1, 3, 2}},
		{"transpose(u32[3]): ", "transpose", "", []graphhook.Handle{2}},
		{"constant(): constant \"hook/constant/1\" has 1 values, expected 2 for f32[2]", "constant", `{"shape":[2],"data":[1]}`, nil},
		{"constant(): data[1] is 0.5, expected a value of i32", "constant", `{"dtype":"i32","shape":[2],"data":[1,0.5]}`, nil},
		{"constant(): shape [1099511627776] has more than", "constant", big, nil},
		{"full(): shape [65536,65536] has more than", "full", `{"value":1,"shape":[65536,65536]}`, nil},
		{"full(): -1 is not a value of u32", "full", `{"value":-1,"dtype":"u32"}`, nil},
		{"more than 16777216 bytes of attributes", "exp", strings.Repeat(" ", 16<<20+1), []graphhook.Handle{1}},
	} {
		_, _, err := attempt(c.name, c.attributes, c.inputs...)
		assert.ErrorContains(t, err, c.want)
	}
}

func TestMistakesInTheLoss(t *testing.T) {
	build := func(write func(b *graphhook.Builder) (graphhook.Handle, error)) error {
		_, err := graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab}, func(b *graphhook.Builder) (graphhook.Handle, error) {
			prepare(b)
			return write(b)
		})
		return err
	}
	for want, write := range map[string]func(b *graphhook.Builder) (graphhook.Handle, error){
		"the loss: there is no value 9, expected 1 to 3": func(*graphhook.Builder) (graphhook.Handle, error) { return 9, nil },
		"found a loss of type f32[3,5], expected f32[3], a number for each token": func(*graphhook.Builder) (graphhook.Handle,
			error) {
			return 1, nil
		},
		"found a loss of type u32[3], expected f32[3]": func(*graphhook.Builder) (graphhook.Handle, error) { return 2, nil },
		`unknown input "hidden", expected one of logits, targets`: func(b *graphhook.Builder) (graphhook.Handle,
			error) {
			return b.Input("hidden")
		},
		"the loss has a gradient neither with respect to logits nor to hidden": func(b *graphhook.Builder) (graphhook.Handle, error) {
			return b.Op("cast", []graphhook.Handle{2}, []byte(`{"to":"f32"}`))
		},
		"exp: the graph has more than 16384 values": func(b *graphhook.Builder) (h graphhook.Handle, err error) {
			for h = 1; err == nil; h, err = b.Op("exp", []graphhook.Handle{h}, nil) {
			}
			return h, err
		},
	} {
		assert.ErrorContains(t, build(write), want)
	}
	_, err := graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab}, func(b *graphhook.Builder) (graphhook.Handle, error) {
		h, err := b.Input("logits")
		require.NoError(t, err)
		if h, err = b.Op("stop_gradient", []graphhook.Handle{h}, nil); err == nil {
			h, err = b.Op("mean", []graphhook.Handle{h}, nil)
		}
		return h, err
	})
	assert.ErrorContains(t, err, "the loss has a gradient neither with respect to logits nor to hidden")
}

// Random calls of the builder succeed or return an error; none panics.
func TestNothingPanics(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	kinds := graphhook.Kinds()
	number := func() string {
		return []string{"0", "1", "-1", "2", "3", "5", "-2", "1e300", "0.5", "65536", "4294967295", "2147483648", "9223372036854775807",
			"-9223372036854775808", `"nan"`, `"inf"`, "null", `"x"`, "[]", "true"}[rng.IntN(20)]
	}
	list := func() string {
		xs := make([]string, rng.IntN(4))
		for i := range xs {
			xs[i] = number()
		}
		return "[" + strings.Join(xs, ",") + "]"
	}
	small := func() string { return fmt.Sprint(rng.IntN(4) - 1) }
	names := []string{"axes", "axis", "keep", "factor", "offset", "low", "high", "to", "shape", "start", "limit", "value", "trans_a",
		"trans_b", "dtype", "data", "ignore", "z_loss", "eps", "cap", "k", "experts"}
	done, refused := map[string]int{}, 0
	for range 600 {
		_, err := graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab}, func(b *graphhook.Builder) (graphhook.Handle, error) {
			prepare(b)
			for next := graphhook.Handle(4); next < 60; {
				k := kinds[rng.IntN(len(kinds))]
				in := make([]graphhook.Handle, rng.IntN(4))
				for i := range in {
					in[i] = graphhook.Handle(rng.IntN(int(next)) + rng.IntN(2))
				}
				if len(in) > 1 {
					switch rng.IntN(3) {
					case 0:
						in[0], in[1] = 1, 2
					case 1:
						in[1] = in[0]
					}
				}
				var attributes string
				if needed := asked(b, k); rng.IntN(10) > 0 && needed != nil {
					for _, n := range needed {
						v := small()
						switch {
						case n == "axes" || n == "shape" || n == "data":
							v = "[" + strings.Join([]string{small(), small()}[:rng.IntN(3)], ",") + "]"
						case n == "to":
							v = `"f32"`
						}
						attributes += fmt.Sprintf(`,%q:%s`, n, v)
					}
					attributes = "{" + strings.TrimPrefix(attributes, ",") + "}"
				} else if rng.IntN(3) == 0 {
					v := number()
					if rng.IntN(2) == 0 {
						v = list()
					}
					attributes = fmt.Sprintf("{%q:%s}", names[rng.IntN(len(names))], v)
				}
				h, err := b.Op(k, in, []byte(attributes))
				if err != nil {
					refused++
					assert.Contains(t, err.Error(), k)
					continue
				}
				done[k]++
				next = h + 1
				switch k {
				case "cross_entropy", "top_k":
					next++
				case "group_rows":
					next += 2
				}
			}
			return b.Op("mean", []graphhook.Handle{graphhook.Handle(4 + rng.IntN(56))}, nil)
		})
		_ = err // a loss or a mistake: either is fine
	}
	for _, k := range kinds {
		// they take none of these shapes
		if !slices.Contains([]string{"attention", "rope", "rms_norm", "layer_norm", "group_rows", "take", "grouped_matmul"}, k) {
			assert.Positive(t, done[k], "%s was never done", k)
		}
	}
	assert.Greater(t, refused, 10000)
}

// asked finds the required attributes of an op from its errors.
func asked(b *graphhook.Builder, kind string) (names []string) {
	for range 5 {
		for inputs := range 4 {
			in := []graphhook.Handle{1, 1, 1}[:inputs]
			attributes := ""
			for _, n := range names {
				attributes += fmt.Sprintf(`,%q:"?"`, n)
			}
			_, err := b.Op(kind, in, []byte("{"+strings.TrimPrefix(attributes, ",")+"}"))
			if err == nil {
				return names
			}
			if _, rest, ok := strings.Cut(err.Error(), `attribute "`); ok && strings.Contains(rest, "missing") {
				name, _, _ := strings.Cut(rest, `"`)
				names = append(names, name)
				break
			}
		}
	}
	return names
}

// The gradient of a loss agrees with central differences, in float64.
func TestGradientOfAFocalLoss(t *testing.T) {
	g, err := graphhook.BuildLoss(graphhook.Inputs{Rows: rows, Vocab: vocab}, func(b *graphhook.Builder) (graphhook.Handle, error) {
		prepare(b)
		h, err := graphhook.Handle(3), error(nil)
		for _, step := range []struct {
			name, attributes string
			second           graphhook.Handle
		}{{"pick", "", 2}, {"exp", "", 0}, {"neg", "", 0}, {"shift", `{"offset":1}`, 0}, {"square", "", 0}, {"mul", "", 4},
			{"neg", "", 0}} {
			in := []graphhook.Handle{h}
			if step.second > 0 {
				in = append(in, step.second)
			}
			if h, err = b.Op(step.name, in, []byte(step.attributes)); err != nil {
				return 0, err
			}
		}
		return h, nil
	})
	require.NoError(t, err)
	full, err := graph.Build(func(b *graph.Builder) {
		logits, targets := b.Input("logits", graph.T(graph.F32, rows, vocab)), b.Input("targets", graph.T(graph.U32, rows))
		loss := op.Mean(b.Inline(g.Graph, map[string]*graph.Value{"logits": logits, "targets": targets})["loss"], nil, false)
		b.Output("loss", loss)
		b.Output("grad", autodiff.Gradients(loss, nil, logits)[0])
	})
	require.NoError(t, err)
	in := map[string]*graph.Tensor{"logits": graph.NewTensor(graph.T(graph.F32, rows, vocab)),
		"targets": graph.NewTensor(graph.T(graph.U32, rows))}
	for i := range in["logits"].Data {
		in["logits"].Data[i] = 2 * math.Sin(1.7*float64(i))
	}
	copy(in["targets"].Data, []float64{4, 0, 2})
	out, err := eval.Run(full, in, nil)
	require.NoError(t, err)
	for i := range in["logits"].Data {
		const h = 1e-5
		at := func(d float64) float64 {
			x := in["logits"].Data
			defer func(old float64) { x[i] = old }(x[i])
			x[i] += d
			y, err := eval.Run(full, in, nil)
			require.NoError(t, err)
			return y["loss"].Data[0]
		}
		assert.InDelta(t, (at(h)-at(-h))/(2*h), out["grad"].Data[i], 1e-8)
	}
}

// Every op that modules can apply is documented.
func TestKindsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/HOOKS.md")
	require.NoError(t, err)
	_, ops, _ := strings.Cut(string(text), "## Ops")
	for _, k := range graphhook.Kinds() {
		assert.Contains(t, ops, "`"+k+"`", k)
	}
}
