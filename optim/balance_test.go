package optim

import (
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

const balanceRate = 0.125

// withBias adds a balancing bias of three experts, and one of a single expert, to a layer of testParams. Their
// gradients come from two replicas.
func withBias() []Param {
	ps := testParams()
	for i, name := range []string{"layers.1.bias", "layers.3.bias"} {
		at := slices.IndexFunc(ps, func(p Param) bool { return p.Layer == layer.FindString(name) })
		ps = slices.Insert(ps, at+1, Param{Name: name, Type: graph.T(graph.F32, 3-2*i), Layer: layer.FindString(name),
			Gradient: "grad/" + name, Contributions: []string{"replica1/" + name}, BalancingBias: true, BalanceRate: balanceRate})
	}
	return ps
}

// A balancing bias moves by its loads alone, and nothing else moves by it, whatever the optimizer, the delay and the
// loss scale.
func TestBalancingBias(t *testing.T) {
	loads := [][3]float64{{3, 3, 3}, {9, 0, 0}, {1, 5, 3}, {1 << 22, 1<<22 - 1, 1<<22 + 1}, {0, 0, 0}}
	deltas := [][3]float64{{0, 0, 0}, {-4. / 3, 2. / 3, 2. / 3}, {1, -1, 0}, {0, 1, -1}, {0, 0, 0}}
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		exact := tolerance < 1e-9
		for _, c := range []struct {
			optimizer  string
			correction Correction
			scale      *LossScale
		}{
			{"muon", nil, nil}, {"soap", &ErrorFeedback{}, nil}, {"adamw", nil, &LossScale{Initial: 64, GrowthEvery: 100}},
			{"muon", &WeightPrediction{}, nil}, {"sgd", DefaultDCASGD(), &LossScale{Initial: 64, GrowthEvery: 100}},
		} {
			if !exact && c.optimizer != "adamw" && c.optimizer != "sgd" {
				continue
			}
			cfg := testConfigs()[c.optimizer]
			cfg.SkipNonfinite, cfg.LossScale, cfg.Clip = true, c.scale, 0.5
			if c.correction != nil {
				cfg.Delay, cfg.Correction = 1, c.correction
			}
			params, without := withBias(), testParams()
			o, m := start(t, cfg, params, on)
			o0, m0 := start(t, cfg, without, on)
			if scaling := o.Scaling(); scaling != nil {
				var initial []float64
				for _, x := range scaling.Initial() {
					initial = append(initial, float64(x))
				}
				m.set(ScaleVariable, initial)
				m0.set(ScaleVariable, initial)
			}
			for name, x := range randomTensors(without, -1) {
				m.set(name, x)
			}
			bias := []float64{0.5, -0.25, 0}
			m.set("layers.1.bias", bias)
			m.set("layers.3.bias", []float64{0.75})
			for step, load := range loads {
				for name, g := range randomTensors(without, step) {
					m.set("grad/"+name, g)
					m0.set("grad/"+name, g)
				}
				for i, name := range []string{"grad/layers.1.bias", "replica1/layers.1.bias"} {
					shares := []float64{0, 0, 0}
					for j, n := range load {
						shares[j] = []float64{math.Floor(n / 2), math.Ceil(n / 2)}[i]
					}
					m.set(name, shares)
				}
				m.set("grad/layers.3.bias", []float64{0})
				m.set("replica1/layers.3.bias", []float64{7})
				norm, ok := run(m, o, step)
				require.True(t, ok)
				norm0, _ := run(m0, o0, step)
				rotate(m, params, cfg.Delay)
				rotate(m0, without, cfg.Delay)
				floats.AddScaled(bias, balanceRate, deltas[step][:])
				assert.InDeltaSlice(t, bias, m.get("layers.1.bias"), 1e-7, "%s, step %d", c.optimizer, step)
				assert.Equal(t, []float64{0.75}, m.get("layers.3.bias"))
				if exact {
					assert.Equal(t, norm0, norm)
					for name, x := range bits(m0, o0) {
						require.Equal(t, x, patterns(m.get(name)), "%s, step %d: %s", c.optimizer, step, name)
					}
				}
			}
			before := slices.Clone(m.get("layers.1.bias"))
			m.set("replica1/layers.1.bias", []float64{9, 0, 0})
			m.set("grad/layers.2.q", slices.Repeat([]float64{math.NaN()}, 64))
			_, ok := run(m, o, len(loads))
			assert.False(t, ok)
			rotate(m, params, cfg.Delay)
			assert.Equal(t, before, m.get("layers.1.bias"), "of a batch that is refused")
		}
	})
}

// Proportional steps are relative to the mean load, and sum to zero.
func TestProportionalBalancingBias(t *testing.T) {
	eachMachine(t, func(t *testing.T, _ float64, on maker) {
		params := withBias()
		for i := range params {
			params[i].ProportionalBalance = params[i].BalancingBias
		}
		o, m := start(t, testConfigs()["adamw"], params, on)
		for name, x := range randomTensors(testParams(), 0) {
			m.set(name, x)
			m.set("grad/"+name, x)
		}
		bias := []float64{0.5, -0.25, 0}
		m.set("layers.1.bias", bias)
		m.set("layers.3.bias", []float64{0.75})
		m.set("grad/layers.3.bias", []float64{7})
		m.set("replica1/layers.3.bias", []float64{0})
		loads := [][3]float64{{3, 3, 3}, {9, 0, 0}, {1, 5, 3}, {0, 0, 0}}
		deltas := [][3]float64{{0, 0, 0}, {-2, 1, 1}, {2. / 3, -2. / 3, 0}, {0, 0, 0}}
		for step, load := range loads {
			m.set("grad/layers.1.bias", load[:])
			m.set("replica1/layers.1.bias", load[:])
			_, ok := run(m, o, step)
			require.True(t, ok)
			rotate(m, params, 0)
			floats.AddScaled(bias, balanceRate, deltas[step][:])
			assert.InDeltaSlice(t, bias, m.get("layers.1.bias"), 1e-7, "step %d", step)
			assert.Equal(t, []float64{0.75}, m.get("layers.3.bias"))
		}
	})
}

func TestBalancingBiasHasNoState(t *testing.T) {
	cfg := testConfigs()["muon"]
	cfg.Delay, cfg.Correction = 1, &ErrorFeedback{}
	o, err := New(cfg, withBias())
	require.NoError(t, err)
	for _, s := range o.State() {
		assert.NotContains(t, s.ID, "bias")
	}
	assert.Empty(t, o.Ahead("layers.1.bias"))
	assert.NotEmpty(t, o.Ahead("layers.1.norm"))
	assert.Contains(t, o.Assignment(), Assigned{Param: "layers.1.bias", Type: graph.T(graph.F32, 3), Rule: "balance", LR: balanceRate})
	assert.Contains(t, o.String(), "balance, lr 0.125, decay 0: layers.*.bias[3], layers.*.bias[1]")
}

func TestBalancingBiasRefusals(t *testing.T) {
	for want, change := range map[string]func(p *Param){
		"has the balancing rate -1, expected a number of at least 0":   func(p *Param) { p.BalanceRate = -1 },
		"has the balancing rate NaN, expected a number of at least 0":  func(p *Param) { p.BalanceRate = math.NaN() },
		"has the balancing rate +Inf, expected a number of at least 0": func(p *Param) { p.BalanceRate = math.Inf(1) },
		"is f32[3] and a balancing bias":                               func(p *Param) { p.Decay = true },
		"is f32[2,3] and a balancing bias":                             func(p *Param) { p.Type = graph.T(graph.F32, 2, 3) },
	} {
		params := withBias()
		change(&params[slices.IndexFunc(params, func(p Param) bool { return p.BalancingBias })])
		_, err := New(testConfigs()["muon"], params)
		assert.ErrorContains(t, err, want)
	}
}
