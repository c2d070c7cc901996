package graphhook_test

import (
	"fmt"
	"maps"
	"math"
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

// pen builds a model and keeps the first error.
type pen struct {
	b     *graphhook.Builder
	err   error
	whole bool // units are not named
}

type handle = graphhook.Handle

func (p *pen) took(h handle, err error) handle {
	if p.err == nil {
		p.err = err
	}
	return h
}

func (p *pen) op(name, attributes string, in ...handle) handle {
	if p.err != nil {
		return 0
	}
	return p.took(p.b.Op(name, in, []byte(attributes)))
}

func (p *pen) input(name string) handle { return p.took(p.b.Input(name)) }

func (p *pen) unit(name string) {
	if p.whole {
		return
	}
	_, err := p.b.Unit(name)
	p.took(0, err)
}

func (p *pen) parameter(name, attributes string, shape ...int) handle {
	if p.err != nil {
		return 0
	}
	return p.took(p.b.Parameter(name, shape, []byte(attributes)))
}

func (p *pen) linear(x handle, name string, std float64, out, in int) handle {
	return p.op("matmul", `{"trans_b":true}`, x, p.parameter(name, fmt.Sprintf(`{"std":"%x"}`, std), out, in))
}

func write(f func(p *pen) handle) func(b *graphhook.Builder) (handle, error) {
	return func(b *graphhook.Builder) (handle, error) {
		p := &pen{b: b}
		h := f(p)
		return h, p.err
	}
}

// llama writes what model.Config describes.
func llama(p *pen, c model.Config, segmented bool) handle {
	d, kv, residual := c.DModel, c.NKVHeads*c.HeadDim(), model.InitStd/math.Sqrt(2*float64(c.NLayers))
	norm := func(x handle, name string) handle {
		return p.op("rms_norm", fmt.Sprintf(`{"eps":"%x"}`, c.Norm.Eps), x, p.parameter(name, `{"init":"ones"}`, d))
	}
	p.unit("embed")
	x := p.op("embedding", "", p.parameter("model.embed_tokens.weight", "", c.VocabSize, d), p.input("tokens"))
	t, err := p.b.Type(x)
	if p.took(0, err); p.err != nil {
		return 0
	}
	batch := t.Shape[0]
	for i := range c.NLayers {
		name := func(s string) string { return fmt.Sprintf("model.layers.%d.%s.weight", i, s) }
		heads := func(x handle, n int) handle {
			return p.op("reshape", fmt.Sprintf(`{"shape":[%d,%d,%d,%d]}`, batch, c.SeqLen, n, c.HeadDim()), x)
		}
		turned := func(x handle) handle { return p.op("rope", fmt.Sprintf(`{"theta":%v}`, c.Rope.Theta), x) }
		p.unit(fmt.Sprintf("layers.%d.self_attn", i))
		h := norm(x, name("input_layernorm"))
		q := turned(heads(p.linear(h, name("self_attn.q_proj"), model.InitStd, d, d), c.NHeads))
		k := turned(heads(p.linear(h, name("self_attn.k_proj"), model.InitStd, kv, d), c.NKVHeads))
		in := []handle{q, k, heads(p.linear(h, name("self_attn.v_proj"), model.InitStd, kv, d), c.NKVHeads)}
		if segmented {
			in = append(in, p.input("segments"))
		}
		a := p.op("reshape", fmt.Sprintf(`{"shape":[%d,%d,%d]}`, batch, c.SeqLen, d), p.op("attention", "", in...))
		x = p.op("add", "", x, p.linear(a, name("self_attn.o_proj"), residual, d, d))
		p.unit(fmt.Sprintf("layers.%d.mlp", i))
		h = norm(x, name("post_attention_layernorm"))
		gate, up := p.linear(h, name("mlp.gate_proj"), model.InitStd, c.FFN.DFF, d),
			p.linear(h, name("mlp.up_proj"), model.InitStd, c.FFN.DFF, d)
		x = p.op("add", "", x, p.linear(p.op("mul", "", p.op("silu", "", gate), up), name("mlp.down_proj"), residual, d, c.FFN.DFF))
	}
	p.unit("head")
	return p.linear(norm(x, "model.norm.weight"), "lm_head.weight", model.InitStd, c.VocabSize, d)
}

var small = func() model.Config {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen = 11, 8, 2, 2, 1, 12, 6
	c.Rope.Theta = 100
	return c
}()

func writtenLlama(t *testing.T, c model.Config, segmented bool) *model.Written {
	t.Helper()
	w, err := model.NewWritten(c.VocabSize, c.SeqLen, func(batch int) (*model.Draft, error) {
		return graphhook.BuildModel(graphhook.Dims{Batch: batch, SeqLen: c.SeqLen, Vocab: c.VocabSize},
			write(func(p *pen) handle { return llama(p, c, segmented) }))
	})
	require.NoError(t, err)
	return w
}

// state is tensors for the variables of graphs: parameters as they start, ten times as large, ids, and noise.
func state(m model.Model, gs ...*graph.Graph) map[string]*graph.Tensor {
	vars, rng := map[string]*graph.Tensor{}, rand.New(rand.NewPCG(1, 2))
	for _, p := range m.Parameters() {
		vars[p.Name] = graph.NewTensor(p.Type)
		for i, x := range p.Initial(3) {
			vars[p.Name].Data[i] = float64(x)
			if p.Std > 0 {
				vars[p.Name].Data[i] *= 10
			}
		}
	}
	for _, g := range gs {
		for _, v := range g.Sources("variable") {
			name := v.Node.Op.(graph.Source).Label()
			if vars[name] != nil {
				continue
			}
			vars[name] = graph.NewTensor(v.Type)
			for i := range vars[name].Data {
				switch name {
				case "tokens", "targets":
					vars[name].Data[i] = float64(rng.IntN(m.Size().VocabSize))
				case "segments":
					vars[name].Data[i] = float64(i / 4 % 2)
				case "act/in", "grad/out":
					vars[name].Data[i] = rng.NormFloat64()
				}
			}
		}
	}
	return vars
}

// A Llama that a module builds op by op equals that of model.Config to the last bit, in every chunk and for every cut.
func TestAWrittenLlamaIsThatOfConfig(t *testing.T) {
	for _, segmented := range []bool{false, true} {
		w := writtenLlama(t, small, segmented)
		assert.Equal(t, small.Parameters(), w.Parameters())
		assert.Equal(t, small.Count(), w.Count())
		assert.Equal(t, small.Size().DModel, w.Size().DModel)
		require.Equal(t, small.Units(), w.Units())
		for u := range w.Units() {
			assert.Equal(t, small.UnitName(u), w.UnitName(u))
			assert.Equal(t, small.Like(u), w.Like(u))
		}
		for first := range w.Units() {
			for last := first + 1; last <= w.Units(); last++ {
				o := model.StageOptions{First: first, Last: last, Batch: 2, Microbatches: 3, Inputs: model.Inputs{Segments: segmented}}
				want, err := small.Stage(o)
				require.NoError(t, err)
				got, err := w.Stage(o)
				require.NoError(t, err)
				assert.Equal(t, want.Stash, got.Stash)
				assert.Equal(t, want.Parameters, got.Parameters)
				assert.Equal(t, carriedOut(t, small, want), carriedOut(t, w, got), "units %d to %d, segments %v", first, last, segmented)
			}
		}
	}
}

// carriedOut returns the variables of a chunk after a run of its programs.
func carriedOut(t *testing.T, m model.Model, s *model.Stage) map[string]*graph.Tensor {
	t.Helper()
	vars := state(m, s.Eval, s.Forward, s.Backward, s.BackwardNext)
	for _, g := range []*graph.Graph{s.Eval, s.Forward, s.Backward, s.Forward, s.BackwardNext} {
		_, err := eval.Run(g, nil, vars)
		require.NoError(t, err)
	}
	return vars
}

// The gradients of a model with all ops of models agree with central differences.
func TestGradientsOfAWrittenModel(t *testing.T) {
	w, err := model.NewWritten(7, 5, func(batch int) (*model.Draft, error) {
		return graphhook.BuildModel(graphhook.Dims{Batch: batch, SeqLen: 5, Vocab: 7},
			write(func(p *pen) handle { return gpt(p, batch, 5, 7) }))
	})
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 1, 3}, []int{w.Like(0), w.Like(1), w.Like(2), w.Like(3)})
	g, err := w.Grad(2, 1, false)
	require.NoError(t, err)
	vars := state(w, g)
	in := map[string]*graph.Tensor{"tokens": graph.NewTensor(graph.T(graph.U32, 2, 5)),
		"targets": graph.NewTensor(graph.T(graph.U32, 2, 5))}
	for i := range 10 {
		in["tokens"].Data[i], in["targets"].Data[i] = float64(i*3%7), float64(i*5%7)
	}
	loss := func() float64 {
		out, err := eval.Run(g, in, vars)
		require.NoError(t, err)
		return out["loss"].Data[0]
	}
	loss()
	got := map[string][]float64{}
	for _, p := range w.Parameters() {
		got[p.Name] = slices.Clone(vars[model.Gradient(p.Name)].Data)
	}
	for _, p := range w.Parameters() {
		x := vars[p.Name].Data
		for i := range x {
			const h = 1e-5
			old := x[i]
			x[i] = old + h
			up := loss()
			x[i] = old - h
			down := loss()
			x[i] = old
			require.InDelta(t, (up-down)/(2*h), got[p.Name][i], 1e-8, "%s[%d]", p.Name, i)
		}
	}
}

// gpt is a model with learned positions, layer norms with biases, and GELU.
func gpt(p *pen, batch, seq, vocab int) handle {
	const d, heads = 8, 2
	norm := func(x handle, name string) handle {
		return p.op("layer_norm", "", x, p.parameter(name+".weight", `{"init":"ones"}`, d),
			p.parameter(name+".bias", `{"init":"zeros"}`, d))
	}
	affine := func(x handle, name string, out, in int) handle {
		return p.op("add", "", p.linear(x, name+".weight", 0.02, out, in), p.parameter(name+".bias", `{"init":"zeros"}`, out))
	}
	p.unit("embed")
	x := p.op("embedding", "", p.parameter("wte", "", vocab, d), p.input("tokens"))
	x = p.op("add", "", x, p.parameter("wpe", `{"std":0.01}`, seq, d))
	for i := range 2 {
		name := func(s string) string { return fmt.Sprintf("h.%d.%s", i, s) }
		p.unit(fmt.Sprintf("h.%d", i))
		qkv := affine(norm(x, name("ln_1")), name("attn.c_attn"), 3*d, d)
		part := func(n int) handle {
			s := p.op("slice", fmt.Sprintf(`{"axis":2,"start":%d,"limit":%d}`, n*d, (n+1)*d), qkv)
			return p.op("reshape", fmt.Sprintf(`{"shape":[%d,%d,%d,%d]}`, batch, seq, heads, d/heads), s)
		}
		a := p.op("attention", "", p.op("rope", "", part(0)), p.op("rope", `{"theta":100}`, part(1)), part(2), p.input("segments"))
		a = p.op("reshape", fmt.Sprintf(`{"shape":[%d,%d,%d]}`, batch, seq, d), a)
		x = p.op("add", "", x, affine(a, name("attn.c_proj"), d, d))
		x = p.op("add", "", x, affine(p.op("gelu_tanh", "", affine(norm(x, name("ln_2")), name("mlp.c_fc"), 4*d, d)), name("mlp.c_proj"),
			d, 4*d))
	}
	p.unit("head")
	x = p.op("rms_norm", "", norm(x, "ln_f"), p.parameter("norm", `{"init":"ones"}`, d))
	return p.linear(x, "head", 0.02, vocab, d)
}

var dims = graphhook.Dims{Batch: 2, SeqLen: 4, Vocab: 5}

// A model without named units has one unit. Ops before the first named unit are a unit of their own.
func TestUnitsByDefault(t *testing.T) {
	one, err := graphhook.BuildModel(dims, write(func(p *pen) handle {
		return p.linear(p.op("embedding", "", p.parameter("e", "", 5, 3), p.input("tokens")), "o", 1, 5, 3)
	}))
	require.NoError(t, err)
	assert.Equal(t, []string{"model"}, one.Units)
	two, err := graphhook.BuildModel(dims, write(func(p *pen) handle {
		e, o := p.parameter("e", "", 5, 3), p.parameter("o", "", 5, 3) // where a parameter is used decides
		x := p.op("embedding", "", e, p.input("tokens"))
		p.unit("b")
		return p.op("matmul", `{"trans_b":true}`, x, o)
	}))
	require.NoError(t, err)
	assert.Equal(t, []string{"model", "b"}, two.Units)
	assert.Equal(t, "b", two.Parameters[1].Unit)
}

// The division into units does not change what a model computes.
func TestUnitsChangeNoNumber(t *testing.T) {
	var gradients [2]map[string]*graph.Tensor
	for i := range gradients {
		w, err := model.NewWritten(7, 5, func(batch int) (*model.Draft, error) {
			return graphhook.BuildModel(graphhook.Dims{Batch: batch, SeqLen: 5, Vocab: 7}, write(func(p *pen) handle {
				p.whole = i == 1
				return gpt(p, batch, 5, 7)
			}))
		})
		require.NoError(t, err)
		require.Equal(t, []int{4, 1}[i], w.Units())
		require.Equal(t, []int{8, 0}[i], w.Size().DModel)
		s, err := w.Stage(model.StageOptions{First: 0, Last: w.Units(), Batch: 2, Microbatches: 3, Recompute: i == 1})
		require.NoError(t, err)
		gradients[i] = carriedOut(t, w, s)
		maps.DeleteFunc(gradients[i], func(name string, _ *graph.Tensor) bool { return strings.Contains(name, "stash/") })
	}
	assert.Equal(t, gradients[0], gradients[1])
}

// A module that builds a different model for microbatches of another size gets an error.
func TestTheModelIsTheSameForAllMicrobatches(t *testing.T) {
	w, err := model.NewWritten(5, 4, func(batch int) (*model.Draft, error) {
		return graphhook.BuildModel(graphhook.Dims{Batch: batch, SeqLen: 4, Vocab: 5}, write(func(p *pen) handle {
			if batch == 3 {
				p.unit("other")
			}
			width := 3 + batch/2
			return p.linear(p.op("embedding", "", p.parameter("e", "", 5, width), p.input("tokens")), "o", 1, 5, width)
		}))
	})
	require.NoError(t, err)
	_, err = w.Eval(2, false)
	assert.ErrorContains(t, err, `the model has parameter 0 as "e" f32[5,4] of unit "model" (std 0.02, else 0) for 2 sequences, and as "e" f32[5,3]`)
	_, err = w.Eval(3, false)
	assert.ErrorContains(t, err, "the model has units [other] for 3 sequences, and [model] for one")
}

// The prediction at a position depends only on the tokens up to it.
func TestPredict(t *testing.T) {
	w := writtenLlama(t, small, true)
	g, err := w.Predict()
	require.NoError(t, err)
	vars := state(w, g)
	tokens, position := graph.NewTensor(graph.T(graph.U32, 1, small.SeqLen)), graph.NewTensor(graph.T(graph.U32, 1))
	at := func(n int, tail float64) []float64 {
		for i := range tokens.Data {
			tokens.Data[i] = float64(i * 3 % small.VocabSize)
			if i > n {
				tokens.Data[i] = tail
			}
		}
		position.Data[0] = float64(n)
		out, err := eval.Run(g, map[string]*graph.Tensor{"tokens": tokens, "position": position}, vars)
		require.NoError(t, err)
		return out["logits"].Data
	}
	decode, err := small.Decode()
	require.NoError(t, err)
	cached := state(small, decode)
	for n := range small.SeqLen {
		token, position := graph.NewTensor(graph.T(graph.U32, 1, 1)), graph.NewTensor(graph.T(graph.U32, 1))
		token.Data[0], position.Data[0] = float64(n*3%small.VocabSize), float64(n)
		want, err := eval.Run(decode, map[string]*graph.Tensor{"tokens": token, "position": position}, cached)
		require.NoError(t, err)
		assert.Equal(t, at(n, 0), at(n, 9))
		assert.InDeltaSlice(t, want["logits"].Data, at(n, 0), 1e-12)
	}
}
