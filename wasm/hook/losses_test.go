package hook_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

type tensors = map[string]*graph.Tensor

// checkLoss compares a module's loss with what it should be, a number for each row of the logits, and its gradient with
// central differences, over many random logits and targets, to which more adds the rest.
func checkLoss(t *testing.T, s hook.Spec, rows, vocab int, more []graph.Named, fill func(rng *rand.Rand, in tensors),
	want func(in tensors, row int) float64) {
	t.Helper()
	s.Hook, s.File = hook.BuildLoss, examples+s.File
	loss, err := load(t, newHost(t), s).BuildLoss(ctx, graphhook.Inputs{Rows: rows, Vocab: vocab, More: more})
	require.NoError(t, err)
	require.True(t, loss.PerToken)
	gradient, err := graph.Build(func(b *graph.Builder) {
		in := map[string]*graph.Value{}
		for _, v := range loss.Sources("input") {
			name := v.Node.Op.(graph.Source).Label()
			in[name] = b.Input(name, v.Type)
		}
		sum := op.Sum(b.Inline(loss.Graph, in)[graphhook.Output], nil, false)
		b.Output("gradient", autodiff.Gradients(sum, nil, in[graphhook.Logits])[0])
	})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(8, 8))
	for range 40 {
		in := tensors{graphhook.Logits: graph.NewTensor(graph.T(graph.F32, rows, vocab)),
			graphhook.Targets: graph.NewTensor(graph.T(graph.U32, rows))}
		for i := range in[graphhook.Logits].Data {
			in[graphhook.Logits].Data[i] = 3 * rng.NormFloat64()
		}
		for i := range in[graphhook.Targets].Data {
			in[graphhook.Targets].Data[i] = float64(rng.IntN(vocab))
		}
		fill(rng, in)
		sum := func() (sum float64) {
			for row := range rows {
				sum += want(in, row)
			}
			return sum
		}
		got, err := eval.Run(loss.Graph, in, nil)
		require.NoError(t, err)
		for row, x := range got[graphhook.Output].Data {
			assert.InDelta(t, want(in, row), x, 1e-12*max(1, math.Abs(x)))
		}
		grads, err := eval.Run(gradient, in, nil)
		require.NoError(t, err)
		for i, g := range grads["gradient"].Data {
			const step = 1e-4 // with four points the error is of the order step⁴
			at := func(d float64) float64 {
				defer func(old float64) { in[graphhook.Logits].Data[i] = old }(in[graphhook.Logits].Data[i])
				in[graphhook.Logits].Data[i] += d * step
				return sum()
			}
			assert.InDelta(t, (8*(at(1)-at(-1))-(at(2)-at(-2)))/(12*step), g, 1e-8*max(1, math.Abs(g)))
		}
	}
}

// row is a row of a tensor [N, n].
func row(x *graph.Tensor, i int) []float64 {
	n := x.Shape[1]
	return x.Data[i*n : (i+1)*n]
}

func scaled(x []float64, factor float64) []float64 {
	return floats.ScaleTo(make([]float64, len(x)), factor, x)
}

func TestDistillation(t *testing.T) {
	const rows, vocab, k = 5, 9, 3
	more := []graph.Named{{ID: "teacher_ids", Type: graph.T(graph.U32, rows, k)},
		{ID: "teacher_logprobs", Type: graph.T(graph.F32, rows, k)}}
	signed := []graph.Named{{ID: "teacher_ids", Type: graph.T(graph.I32, rows, k)}, more[1]}
	for _, c := range []struct {
		config             string
		alpha, temperature float64
		rest               bool
		more               []graph.Named
	}{
		{`{}`, 0.5, 1, false, more}, {`{"alpha": 0.1, "temperature": 2.5}`, 0.1, 2.5, false, more},
		{`{"alpha": 0, "temperature": 0.5}`, 0, 0.5, false, signed}, {`{"alpha": 1}`, 1, 1, false, more},
		{`{"alpha": 0.2, "rest": true}`, 0.2, 1, true, more},
	} {
		checkLoss(t, hook.Spec{File: "distillation.wasm", Config: []byte(c.config)}, rows, vocab, c.more, func(rng *rand.Rand, in tensors) {
			in["teacher_ids"], in["teacher_logprobs"] = graph.NewTensor(c.more[0].Type), graph.NewTensor(c.more[1].Type)
			for i := range rows {
				for j, id := range rng.Perm(vocab)[:k] {
					in["teacher_ids"].Data[i*k+j], in["teacher_logprobs"].Data[i*k+j] = float64(id), -1.2-3*rng.Float64()
				}
			}
		}, func(in tensors, i int) float64 {
			z := row(in["logits"], i)
			soft := scaled(z, 1/c.temperature)
			teacher := scaled(row(in["teacher_logprobs"], i), 1/c.temperature)
			divergence, total := 0.0, floats.LogSumExp(teacher)
			leftP, others := 1.0, slices.Clone(soft)
			if c.rest {
				total = 0
			}
			for j, id := range row(in["teacher_ids"], i) {
				logP := teacher[j] - total
				logQ := soft[int(id)] - floats.LogSumExp(soft)
				divergence += math.Exp(logP) * (logP - logQ)
				leftP, others[int(id)] = leftP-math.Exp(logP), math.Inf(-1)
			}
			if c.rest {
				divergence += leftP * (math.Log(leftP) - max(floats.LogSumExp(others)-floats.LogSumExp(soft), math.Log(1e-5)))
			}
			nll := floats.LogSumExp(z) - z[int(in["targets"].Data[i])]
			return c.alpha*nll + (1-c.alpha)*c.temperature*c.temperature*divergence
		})
	}
}

func TestAnnealedSmoothing(t *testing.T) {
	const rows, vocab = 4, 7
	for config, z := range map[string]float64{`{}`: 0, `{"from": 0.3, "z": 0.01}`: 0.01} {
		checkLoss(t, hook.Spec{File: "annealed_smoothing.wasm", Config: []byte(config)}, rows, vocab, nil,
			func(rng *rand.Rand, in tensors) {
				in["scalar/epsilon"] = graph.NewTensor(graph.T(graph.F32))
				in["scalar/epsilon"].Data[0] = rng.Float64() / 2
			}, func(in tensors, i int) float64 {
				x, e := row(in["logits"], i), in["scalar/epsilon"].Data[0]
				lse := floats.LogSumExp(x)
				smooth := 0.0
				for _, l := range x {
					smooth += (lse - l) / vocab
				}
				return (1-e)*(lse-x[int(in["targets"].Data[i])]) + e*smooth + z*lse*lse
			})
	}
	for config, want := range map[string][3]float32{ // at steps 0, 5 and 19 of 20
		`{}`: {0.1, 0.075, 0.005}, `{"from": 0.2, "to": 0.4, "steps": 10}`: {0.2, 0.3, 0.4},
	} {
		m := load(t, newHost(t), hook.Spec{File: examples + "annealed_smoothing.wasm", Hook: hook.BuildLoss, Config: []byte(config)})
		s, err := m.Scalars(ctx, 1)
		require.NoError(t, err)
		for i, step := range []int{0, 5, 19} {
			got, err := s.Values(ctx, step, 20)
			require.NoError(t, err)
			assert.InDelta(t, want[i], got[0], 1e-7)
		}
		require.NoError(t, s.Close())
	}
}

func TestLossesRefuseConfigs(t *testing.T) {
	teacher := []graph.Named{{ID: "teacher_ids", Type: graph.T(graph.U32, 4, 3)}, {ID: "teacher_logprobs", Type: graph.T(graph.F32, 4, 3)}}
	narrow := []graph.Named{teacher[0], {ID: "teacher_logprobs", Type: graph.T(graph.F32, 4, 2)}}
	for file, cases := range map[string]map[string]string{
		"distillation.wasm": {`{"alpha": 2}`: "alpha: expected a number from 0 to 1",
			`{"temperature": 0}`:               "temperature: expected a number above 0",
			`{"rest": true, "temperature": 2}`: "rest: expected temperature 1", `{"alpha": "x"}`: "alpha is not a number",
			`{"temp": 2}`: "temp"},
		"annealed_smoothing.wasm": {`{"from": 1}`: "from: expected a number", `{"to": -1}`: "to: expected a number",
			`{"steps": 0}`: "steps: expected"},
	} {
		for config, want := range cases {
			m := load(t, newHost(t), hook.Spec{File: examples + file, Hook: hook.BuildLoss, Config: []byte(config)})
			_, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 4, Vocab: 7, More: teacher})
			assert.ErrorContains(t, err, want, config)
		}
	}
	m := load(t, newHost(t), hook.Spec{File: examples + "distillation.wasm", Hook: hook.BuildLoss})
	_, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: 4, Vocab: 7, More: narrow})
	assert.ErrorContains(t, err, "expected two arrays [tokens, k] of the same shape")
	_, err = m.BuildLoss(ctx, graphhook.Inputs{Rows: 4, Vocab: 7})
	assert.ErrorContains(t, err, `unknown input "teacher_ids"`)
}
