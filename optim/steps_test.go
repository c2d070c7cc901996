package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
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

func testConfigs() map[string]Config {
	schedule := Schedule{Name: "cosine", Steps: steps, Warmup: 3, MinRatio: 0.1}
	adam := AdamWConfig{LR: 3e-3, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}
	muon := Config{Name: "muon", LR: 0.02, Momentum: 0.95, Nesterov: true, WeightDecay: 0.1, NewtonSchulz: "jordan", Scale: "spectral",
		Clip: 1, AdamW: adam, Loss: "loss", Schedule: schedule}
	plain, polar := muon, muon
	plain.Nesterov = false
	polar.NewtonSchulz, polar.Scale = "polar_express", "match_rms_adamw"
	sgd := Config{Name: "sgd", LR: 0.1, Momentum: 0.9, WeightDecay: 0.1, Clip: 1, Schedule: schedule}
	nesterov, bare := sgd, sgd
	nesterov.Nesterov, nesterov.Clip = true, 0
	bare.Momentum = 0
	normuon, wide := muon, muon
	normuon.Name, normuon.Beta2, normuon.Nesterov = "normuon", 0.95, true
	wide.Name, wide.Beta2, wide.Nesterov, wide.Scale = "normuon", 0.9, false, "match_rms_adamw"
	lion := Config{Name: "lion", LR: 1e-3, Betas: []float64{0.9, 0.99}, WeightDecay: 0.3, Clip: 1, Schedule: schedule}
	adan := Config{Name: "adan", LR: 3e-3, Betas: []float64{0.98, 0.92, 0.99}, Eps: 1e-8, WeightDecay: 0.1, Clip: 1, Schedule: schedule}
	mars := Config{Name: "mars", LR: 3e-3, Betas: []float64{0.95, 0.99}, Eps: 1e-8, Gamma: 0.025, WeightDecay: 0.1, AdamW: adam, Schedule: schedule}
	// Of a matrix that is not square, the first preconditioner of the longer side has many bases.
	soap := Config{Name: "soap", LR: 3e-3, Betas: []float64{0.95, 0.9}, Eps: 1e-8, ShampooBeta: 0.85, PreconditionFrequency: 4,
		MaxPrecondDim: 8, WeightDecay: 0.1, Clip: 1, Schedule: schedule}
	return map[string]Config{
		"normuon": normuon, "normuon without nesterov, rms scale": wide, "lion": lion, "adan": adan, "mars": mars, "soap": soap,
		"muon": muon, "muon without nesterov": plain, "muon polar express, rms scale": polar,
		"adamw": {Name: "adamw", LR: 3e-3, WeightDecay: 0.1, Clip: 0.8, AdamW: adam, Schedule: schedule},
		"sgd":   sgd, "sgd nesterov, no clip": nesterov, "sgd without momentum": bare,
	}
}

// numbers are deterministic; step −1 has the initial weights. Every third step's gradient is small enough not to be clipped.
func numbers(params []Param, step int) map[string][]float64 {
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

// Every optimizer with every correction of the delay, and a batch in the middle that is passed over. The device takes each
// once.
func TestEveryDelayedStepIsThePublishedOne(t *testing.T) {
	onDevice := map[string]bool{"sgd dc_asgd": true, "adamw error_feedback": true, "muon weight_prediction": true}
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		for _, name := range []string{"sgd", "sgd nesterov, no clip", "sgd without momentum", "adamw", "muon", "normuon", "lion", "adan", "mars", "soap"} {
			for _, correction := range []string{"", "none", "error_feedback", "weight_prediction", "dc_asgd"} {
				cfg := testConfigs()[name]
				cfg.Delay, cfg.Correction, cfg.SkipNonfinite, cfg.DCLambda = 1, correction, true, 3
				if correction == "" {
					cfg.Delay = 0
				}
				if tolerance < 1e-9 || onDevice[name+" "+correction] {
					t.Run(fmt.Sprintf("%s, delay %d %s", name, cfg.Delay, correction), func(t *testing.T) { follow(t, cfg, testParams(), tolerance, on) })
				}
			}
		}
	})
}

// SOAP begins with the first batch that is applied, whichever that is.
func TestSOAPBeginsWithTheFirstGoodBatch(t *testing.T) {
	for _, delay := range []int{0, 1} {
		for _, skipped := range [][]int{{0}, {0, 1, 2, 4}, {0, 1, 2, 3, 4}} { // the bases are renewed at step 4
			cfg := testConfigs()["soap"]
			cfg.Delay, cfg.SkipNonfinite = delay, true
			followPast(t, cfg, testParams(), 1e-10, newHost, skipped...)
		}
	}
}

// follow compares each of some steps with the reference. The gradients depend on the weights that they are taken at. Where the config
// passes over batches that are not finite, one is not.
func follow(t *testing.T, cfg Config, params []Param, tolerance float64, on maker) {
	if cfg.SkipNonfinite {
		followPast(t, cfg, params, tolerance, on, 4)
	} else {
		followPast(t, cfg, params, tolerance, on)
	}
}

// followPast is follow, past the batches that are not finite.
func followPast(t *testing.T, cfg Config, params []Param, tolerance float64, on maker, skipped ...int) {
	o, m := start(t, cfg, params, on)
	ref := newReference(cfg, params, numbers(params, -1))
	clipped := 0
	for step := range steps {
		gradients := numbers(params, step)
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
			for _, p := range params { // nothing was subtracted, and that is what this one says
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

// compare asks that the distance be small beside the length of what is expected, or of initial weights where that has
// come close to zero.
func compare(t *testing.T, what string, want, got []float64, tolerance float64) {
	t.Helper()
	d := floats.Distance(want, got, 2) / max(floats.Norm(want, 2), 0.3*math.Sqrt(float64(len(want))))
	require.LessOrEqual(t, d, tolerance, what)
	require.False(t, math.IsNaN(d), what)
}
