package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

const steps = 12

// layer finds the layer in a parameter's name.
var layer = regexp.MustCompile(`^[a-z]+(\.\d+)?`)

// testParams has square, wide and tall matrices, several of one shape, and vectors down to one element.
func testParams() []Param {
	var ps []Param
	add := func(name string, matrix bool, shape ...int) {
		ps = append(ps, Param{Name: name, Type: graph.T(graph.F32, shape...), Layer: layer.FindString(name), Gradient: "grad/" + name,
			Matrix: matrix, Decay: len(shape) > 1})
	}
	add("embed", false, 11, 8)
	for i := range 5 {
		add(fmt.Sprintf("layers.%d.norm", i), false, 8)
		add(fmt.Sprintf("layers.%d.q", i), true, 8, 8)
		add(fmt.Sprintf("layers.%d.up", i), true, 20, 8)
	}
	for _, name := range []string{"gate", "left", "right"} {
		add("layers.0."+name, true, 20, 8)
	}
	add("layers.0.down", true, 8, 20)
	add("layers.1.down", true, 8, 20)
	add("scale", false, 1)
	return ps
}

// testConfigs has each optimizer of the table under its name, and variations.
func testConfigs() map[string]Config {
	schedule := Schedule{Name: "cosine", Steps: steps, Warmup: 3, MinRatio: 0.1}
	adam := AdamW{LR: 3e-3, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}
	of := func(a Algorithm) Config {
		return Config{Algorithm: a, AdamW: adam, WeightDecay: 0.1, Clip: 1, Schedule: schedule}
	}
	muon := func(nesterov bool, coefficients, scale string) *Muon {
		return &Muon{LR: 0.02, Momentum: 0.95, Nesterov: nesterov, NewtonSchulz: coefficients, Scale: scale}
	}
	all := map[string]Config{
		"muon":                                of(muon(true, "jordan", "spectral")),
		"muon without nesterov":               of(muon(false, "jordan", "spectral")),
		"muon polar express, rms scale":       of(muon(true, "polar_express", "match_rms_adamw")),
		"normuon":                             of(&NorMuon{*muon(true, "jordan", "spectral"), 0.95}),
		"normuon without nesterov, rms scale": of(&NorMuon{*muon(false, "jordan", "match_rms_adamw"), 0.9}),
		"adamw":                               of(&adam),
		"sgd":                                 of(&SGD{LR: 0.1, Momentum: 0.9}),
		"sgd nesterov, no clip":               of(&SGD{LR: 0.1, Momentum: 0.9, Nesterov: true}),
		"sgd without momentum":                of(&SGD{LR: 0.1}),
		"lion":                                of(&Lion{1e-3, [2]float64{0.9, 0.99}}),
		"adan":                                of(&Adan{3e-3, [3]float64{0.98, 0.92, 0.99}, 1e-8}),
		"mars":                                of(&MARS{AdamW{3e-3, [2]float64{0.95, 0.99}, 1e-8}, 0.025}),
		// Of a matrix that is not square, the first preconditioner of the longer side has many bases.
		"soap": of(&SOAP{AdamW{3e-3, [2]float64{0.95, 0.9}, 1e-8}, 0.85, 4, 8}),
	}
	for name, cfg := range all {
		switch name {
		case "lion":
			cfg.WeightDecay = 0.3
		case "adamw":
			cfg.Clip = 0.8
		case "mars", "sgd nesterov, no clip":
			cfg.Clip = 0
		}
		if strings.Contains(name, "muon") {
			cfg.Losses = []string{"loss"}
		}
		all[name] = cfg
	}
	return all
}

// correctionOf is a correction of the table, with a λ at which dc_asgd is far from no correction.
func correctionOf(t *testing.T, name string) Correction {
	c := Corrections()[slices.Index(CorrectionNames(), name)].New()
	if d, ok := c.(*DCASGD); ok {
		d.Lambda = 3
	}
	return c
}

// randomTensors are deterministic; step −1 has the initial weights. Every third step's gradient is small enough not to
// be clipped.
func randomTensors(params []Param, step int) map[string][]float64 {
	r := rand.New(rand.NewPCG(7, uint64(step+1)))
	size := 0.3
	if step%3 == 2 {
		size = 0.01
	}
	xs := map[string][]float64{}
	for _, p := range params {
		x := make([]float64, p.Type.Shape.Len())
		for i := range x {
			x[i] = float64(float32(size * r.NormFloat64()))
		}
		xs[p.Name] = x
	}
	return xs
}

func TestEveryStepIsThePublishedOne(t *testing.T) {
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		for name, cfg := range testConfigs() {
			if name == "soap" && tolerance > 1e-9 {
				continue // the device takes TestSOAPOnBothSides: so many kernels compile for long
			}
			t.Run(name, func(t *testing.T) { follow(t, cfg, testParams(), tolerance, on) })
		}
	})
}

// Every optimizer with every correction of the delay, with all or some microbatches stale, and a batch in the middle
// that is skipped. The device runs each correction once.
func TestEveryDelayedStepIsThePublishedOne(t *testing.T) {
	onDevice := map[string]bool{"sgd dc_asgd": true, "adamw error_feedback": true, "muon weight_prediction": true}
	names := append(OptimizerNames(), "sgd nesterov, no clip", "sgd without momentum")
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		for _, name := range names {
			for _, correction := range append(CorrectionNames(), "") {
				cfg := testConfigs()[name]
				cfg.SkipNonfinite = true
				if correction != "" {
					cfg.Delay, cfg.Correction = 1, correctionOf(t, correction)
				}
				if tolerance < 1e-9 || onDevice[name+" "+correction] {
					t.Run(fmt.Sprintf("%s, delay %d %s", name, cfg.Delay, correction),
						func(t *testing.T) { follow(t, cfg, testParams(), tolerance, on) })
				}
				if tolerance < 1e-9 && cfg.Delay == 1 {
					cfg.Staleness = 0.375
					t.Run(fmt.Sprintf("%s, staleness %v %s", name, cfg.Staleness, correction),
						func(t *testing.T) { follow(t, cfg, testParams(), tolerance, on) })
				}
			}
		}
	})
}

// SOAP's initialization step is the first batch that is applied, whichever that is.
func TestSOAPInitializesWithTheFirstGoodBatch(t *testing.T) {
	for _, delay := range []int{0, 1} {
		for _, skipped := range [][]int{{0}, {0, 1, 2, 4}, {0, 1, 2, 3, 4}} { // the bases are renewed at step 4
			cfg := testConfigs()["soap"]
			cfg.Delay, cfg.SkipNonfinite = delay, true
			followPast(t, cfg, testParams(), 1e-10, newHost, skipped...)
		}
	}
}

// follow compares each of some steps with the reference. The gradients depend on the weights that they are taken at. If
// the config skips batches that are not finite, one of them is not.
func follow(t *testing.T, cfg Config, params []Param, tolerance float64, on maker) {
	if cfg.SkipNonfinite {
		followPast(t, cfg, params, tolerance, on, 4)
	} else {
		followPast(t, cfg, params, tolerance, on)
	}
}

// followPast is follow with the given batches not finite.
func followPast(t *testing.T, cfg Config, params []Param, tolerance float64, on maker, skipped ...int) {
	o, m := start(t, cfg, params, on)
	ref := newReference(cfg, params, randomTensors(params, -1))
	if cfg.Moments == graph.BF16 {
		ref.rounding = o
	}
	clipped := 0
	for step := range steps {
		gradients := randomTensors(params, step)
		for _, p := range params {
			g := gradients[p.Name]
			floats.AddScaled(g, 0.02, ref.x[p.Name][step].RawMatrix().Data)
			for i := range g {
				g[i] = float64(float32(g[i]))
			}
			if slices.Contains(skipped, step) && p.Name == "layers.2.q" {
				g[3] = math.NaN()
			}
			m.set(p.Gradient, g)
		}
		var before map[string][]uint64
		if cfg.Delay == 1 || slices.Contains(skipped, step) {
			before = bits(m, o)
		}
		norm, ok := run(m, o, step)
		want := ref.step(step, o.cfg.Schedule.Factor(step), gradients)
		require.Equal(t, !math.IsNaN(want), ok, "step %d", step)
		if ok {
			require.InEpsilon(t, want, norm, tolerance, "norm of step %d", step)
		} else {
			after := bits(m, o)
			for _, p := range params { // nothing was subtracted, and this state says so
				delete(before, stateName(AppliedState, p.Name))
				delete(after, stateName(AppliedState, p.Name))
			}
			require.Equal(t, before, after, "step %d", step)
		}
		if cfg.Clip > 0 && want > cfg.Clip {
			clipped++
		}
		for _, p := range params {
			what := fmt.Sprintf("step %d: %s", step, p.Name)
			if cfg.Delay == 1 {
				require.Equal(t, before[p.Name], patterns(m.get(p.Name)), what)
				m.set(p.Name, m.get(p.Gradient))
			}
			compare(t, what, ref.newest(p.Name).RawMatrix().Data, m.get(p.Name), tolerance)
			if cfg.Delay == 1 || step == steps-1 {
				compare(t, what+" settled", ref.y[p.Name].RawMatrix().Data, settled(m, o, p), max(tolerance, 1e-6))
			}
		}
	}
	if cfg.Clip > 0 {
		assert.True(t, 0 < clipped && clipped < steps-1, "%d steps were clipped", clipped)
	}
}

// settled is a parameter's weights without anticipation.
func settled(m machine, o *Optimizer, p Param) []float64 {
	narrow := func(xs []float64) (ys []float32) {
		for _, x := range xs {
			ys = append(ys, float32(x))
		}
		return ys
	}
	var ahead []float32
	if name := o.Ahead(p.Name); name != "" {
		ahead = narrow(m.get(name))
	}
	var wide []float64
	for _, y := range Settled(narrow(m.get(p.Name)), ahead) {
		wide = append(wide, float64(y))
	}
	return wide
}

// compare requires a distance that is small relative to the norm of the expected vector, or to that of initial weights
// if the expected one is close to zero.
func compare(t *testing.T, what string, want, got []float64, tolerance float64) {
	t.Helper()
	d := floats.Distance(want, got, 2) / max(floats.Norm(want, 2), 0.3*math.Sqrt(float64(len(want))))
	require.LessOrEqual(t, d, tolerance, what)
	require.False(t, math.IsNaN(d), what)
}
