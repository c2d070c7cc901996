package hook_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The modules of the same hook in five languages.
var (
	focalLosses = map[string]string{"c": examples + "focal_loss.wasm"}
	rareTokens  = map[string]string{}
	languages   = []string{"c", "rust", "assemblyscript", "tinygo", "go"}
)

func init() {
	for _, l := range languages {
		rareTokens[l] = examples + "languages/" + l + "/rare_tokens.wasm"
		if l != "c" {
			focalLosses[l] = examples + "languages/" + l + "/focal_loss.wasm"
		}
	}
}

// cachingHost compiles a module once, however often it is loaded: Go's take seconds.
func cachingHost(t *testing.T) *hook.Host {
	t.Helper()
	h, err := hook.NewHost(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// focalOf is focal with any γ.
func focalOf(logits, targets *graph.Value, gamma, z float64) *graph.Value {
	if gamma == 2 {
		return focal(logits, targets, z)
	}
	top := op.StopGradient(op.ReduceMax(logits, []int{-1}, true))
	lse := op.Add(op.Log(op.Sum(op.Exp(op.Sub(logits, top)), []int{-1}, false)), op.Sum(top, []int{-1}, false))
	nll := op.Sub(lse, op.Pick(logits, targets))
	miss := op.Shift(op.Neg(op.Exp(op.Neg(nll))), 1)
	b := logits.Builder()
	focus := op.Pow(op.Maximum(miss, op.Scalar(b, graph.F32, 1e-12)), op.Scalar(b, graph.F32, gamma))
	return op.Add(op.Mul(focus, nll), op.Scale(op.Square(lse), z))
}

// A loss written in any of the languages and the same loss written in Go, in this process, are equal graphs.
func TestFocalLossIsTheSameInAllLanguages(t *testing.T) {
	h := cachingHost(t)
	for _, language := range languages {
		for config, of := range map[string][2]float64{
			`{}`:                                   {2, 1e-4},
			" {\"z\"\n:\t0.1 , \"gamma\" : 2.0} ":  {2, 0.1},
			`{"gamma":1.5,"z":-12.5e-3}`:           {1.5, -12.5e-3},
			`{"gamma":0,"z":1E+2}`:                 {0, 100},
			`{"z":123456789.012345,"gamma":1e-05}`: {1e-5, 123456789.012345},
			`{"z":-0.0,"gamma":3}`:                 {3, math.Copysign(0, -1)},
		} {
			m := load(t, h, hook.Spec{File: focalLosses[language], Hook: hook.BuildLoss, Config: []byte(config)})
			for _, shape := range [][2]int{{1, 1}, {1, 2}, {3, 1}, {7, 13}, {64, 257}, {1000, 50257}} {
				got, err := m.BuildLoss(ctx, graphhook.Inputs{Rows: shape[0], Vocab: shape[1]})
				require.NoError(t, err, "%s %s %v", language, config, shape)
				want, err := graph.Build(func(b *graph.Builder) {
					b.Output("loss", focalOf(b.Input("logits", graph.T(graph.F32, shape[0], shape[1])),
						b.Input("targets", graph.T(graph.U32, shape[0])), of[0], of[1]))
				})
				require.NoError(t, err)
				assert.Equal(t, hash(t, want), hash(t, got.Graph), "%s %s %v", language, config, shape)
			}
		}
	}
}

// The message for a mistake in the configuration is the same in all languages.
func TestMistakesInAConfigurationInAllLanguages(t *testing.T) {
	h := cachingHost(t)
	for _, language := range languages {
		for config, want := range map[string]string{
			`{"gama":3}`:    `build_loss: failed: config: unknown key "gama", expected one of gamma, z`,
			`{"gamma":"x"}`: "gamma is ",
			`{"z":[1]}`:     "z is ",
			`{"z":null}`:    "z is ",
		} {
			_, err := load(t, h, hook.Spec{File: focalLosses[language], Hook: hook.BuildLoss, Config: []byte(config)}).BuildLoss(ctx,
				graphhook.Inputs{Rows: 2, Vocab: 3})
			assert.ErrorContains(t, err, want, language)
			assert.ErrorContains(t, err, "build_loss", language)
		}
	}
}

// weigh is the hook rare_tokens in Go.
func weigh(seen []uint32, targets []uint32, weights []float32, least float64) {
	for i, target := range targets {
		n := &seen[target%uint32(len(seen))]
		weights[i] = float32(float64(weights[i]) * max(least, 1/math.Sqrt(1+float64(*n))))
		*n++
	}
}

// openAll opens a module in each language, in memory that would not do for one that loses some in each call.
func openAll(t *testing.T, cache, config string) map[string]*wasm.Instance {
	t.Helper()
	r, err := wasm.NewRuntime(wasm.Config{CacheDir: cache})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	all := map[string]*wasm.Instance{}
	for _, l := range languages {
		bin, err := os.ReadFile(rareTokens[l])
		require.NoError(t, err)
		m, err := r.Load(rareTokens[l], bin, wasm.Limits{MemoryPages: 160})
		require.NoError(t, err)
		assert.True(t, m.Stateful())
		all[l], err = m.Open(ctx, wasm.Options{Hook: l, Config: []byte(config)})
		require.NoError(t, err)
	}
	return all
}

// The results of a hook for many batches, including odd and empty ones, have the same bits in all languages. So has its
// state, from which the hook in another language continues.
func TestTokenWeightsAreTheSameInAllLanguages(t *testing.T) {
	const config, least = `{"least": 0.07}`, 0.07
	seen, cache := make([]uint32, 1<<16), t.TempDir()
	all := openAll(t, cache, config)
	random := rand.New(rand.NewPCG(1, 2))
	step := 0
	batches := func() {
		for _, shape := range [][2]int{{1, 1}, {0, 5}, {3, 7}, {2, 0}, {16, 128}, {0, 0}, {5, 129}, {1, 4097}} {
			n := shape[0] * shape[1]
			tokens, targets, before := make([]uint32, n), make([]uint32, n), make([]float32, n)
			for i := range n {
				tokens[i], targets[i], before[i] = random.Uint32(), uint32(random.ExpFloat64()*300), random.Float32()
				if i%97 == 0 {
					targets[i] = random.Uint32()
				}
			}
			want := append([]float32{}, before...)
			weigh(seen, targets, want, least)
			for _, l := range languages {
				got := append([]float32{}, before...)
				_, err := all[l].Call(ctx, "token_weights", step, wasm.Of(wasm.In, tokens, shape[0], shape[1]),
					wasm.Of(wasm.In, targets, shape[0], shape[1]),
					wasm.Of(wasm.InOut, got, shape[0], shape[1]), wasm.Of(wasm.In, []int64{int64(step), 100}))
				require.NoError(t, err)
				assert.Equal(t, want, got, "%s %v", l, shape)
			}
			step++
		}
	}
	batches()
	states := map[string][]byte{}
	for _, l := range languages {
		var err error
		states[l], err = all[l].Save(ctx)
		require.NoError(t, err)
		assert.Equal(t, states["c"], states[l], l)
	}
	all = openAll(t, cache, config)
	for i, l := range languages {
		require.NoError(t, all[l].Load(ctx, states[languages[(i+1)%len(languages)]]))
		assert.Error(t, all[l].Load(ctx, states["c"][1:]), l)
	}
	for _, l := range languages { // what refused a state may be of no more use
		if !all[l].Alive() {
			all[l] = openAll(t, cache, config)[l]
			require.NoError(t, all[l].Load(ctx, states["c"]))
		}
	}
	batches()
}

// Memory stays bounded however often a hook is called.
func TestCallsLoseNoMemoryInAnyLanguage(t *testing.T) {
	all := openAll(t, t.TempDir(), `{}`)
	for _, l := range languages {
		weights, targets := make([]float32, 64), make([]uint32, 64)
		for step := range 5_000 {
			_, err := all[l].Call(ctx, "token_weights", step, wasm.Of(wasm.In, targets, 1, 64), wasm.Of(wasm.In, targets, 1, 64),
				wasm.Of(wasm.InOut, weights, 1, 64), wasm.Of(wasm.In, []int64{int64(step), 100}))
			require.NoError(t, err, fmt.Sprint(l, step))
			if step%50 == 0 { // 256 KB
				_, err := all[l].Save(ctx)
				require.NoError(t, err, fmt.Sprint(l, step))
			}
		}
	}
}
