package optim

import (
	"math"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A gradient or loss that is not finite changes no bit, and neither does any step after it.
func TestHalting(t *testing.T) {
	eachMachine(t, func(t *testing.T, _ float64, on maker) {
		for name, c := range map[string]struct {
			variable string
			value    float64
		}{
			"NaN gradient":         {"grad/layers.3.norm", math.NaN()},
			"infinite gradient":    {"grad/layers.2.q", math.Inf(-1)},
			"NaN loss":             {"loss", math.NaN()},
			"infinite loss":        {"loss", math.Inf(1)},
			"overflowing gradient": {"grad/embed", math.MaxFloat64},
		} {
			t.Run(name, func(t *testing.T) {
				params := testParams()
				o, m := start(t, testConfigs()["muon"], params, on)
				feed := func(step int) {
					m.set("loss", []float64{2})
					for p, g := range randomTensors(params, step) {
						m.set("grad/"+p, g)
					}
				}
				feed(0)
				_, ok := run(m, o, 0)
				require.True(t, ok)
				before := bits(m, o)

				feed(1)
				bad := append([]float64(nil), m.get(c.variable)...)
				bad[len(bad)-1] = c.value
				m.set(c.variable, bad)
				norm, ok := run(m, o, 1)
				assert.False(t, ok)
				assert.Equal(t, c.variable != "loss", math.IsNaN(norm) || math.IsInf(norm, 0), "the norm is %v", norm)
				assert.Equal(t, before, bits(m, o))
				assert.Equal(t, []float64{1}, m.get(HaltedVariable))

				feed(2)
				norm, ok = run(m, o, 2)
				assert.False(t, ok, "no later step is applied")
				assert.False(t, math.IsNaN(norm) || math.IsInf(norm, 0))
				assert.Equal(t, before, bits(m, o))
			})
		}
	})
}

// llama is the parameters of the tiny work: 4 layers, d_model 128, d_ff 352, vocabulary 256.
func llama() []Param {
	var ps []Param
	add := func(name string, matrix bool, shape ...int) {
		ps = append(ps, Param{Name: name, Type: graph.T(graph.F32, shape...), Layer: layer.FindString(name), Gradient: "grad/" + name,
			Matrix: matrix, Decay: len(shape) > 1})
	}
	add("embed", false, 256, 128)
	for _, l := range []string{"layers.0.", "layers.1.", "layers.2.", "layers.3."} {
		for _, n := range []string{"q", "k", "v", "o"} {
			add(l+n, true, 128, 128)
		}
		add(l+"norm1", false, 128)
		add(l+"gate", true, 352, 128)
		add(l+"up", true, 352, 128)
		add(l+"down", true, 128, 352)
		add(l+"norm2", false, 128)
	}
	add("norm", false, 128)
	add("head", false, 256, 128)
	return ps
}

// With WebGPU's default limits one kernel updates a parameter under AdamW and SGD, with each correction of the delay
// too. Only Muon's batches copy anything of a parameter's size.
func TestKernelsAndCopies(t *testing.T) {
	params := llama()
	attention := int64(4 * 4 * 4 * 128 * 128) // bytes of the batches of four
	// The momentum of a matrix, its norm and division, and the products: three a step, or of long matrices by Gram
	// matrices. Several matrices of one shape are gathered by copies (four) or by their first kernel (two), and each is
	// then applied on its own; one alone by the last product.
	square, long := 3*5, (2+3+3*2)+(2+2+3*1)
	four, two, one := 4+1+2+square+4, 2+1+2+long+2, 1+2+long
	muon := 2*4 + 3 + 4*(four+two+one)
	for _, c := range []struct {
		name, correction string
		kernels          int
		copied           int64
	}{
		{"adamw", "", len(params), 0},
		{"adamw", "none", len(params), 0},
		{"adamw", "error_feedback", len(params), 0},
		{"adamw", "weight_prediction", len(params), 0},
		{"adamw", "dc_asgd", len(params), 0},
		{"sgd", "", len(params), 0},
		{"sgd", "weight_prediction", len(params), 0},
		{"muon", "", muon, attention},
		{"muon", "dc_asgd", muon, attention},
		// What is sliced off a batch is stored already, so nothing joins its use for the weights with that for the
		// state.
		{"muon", "error_feedback", muon + 4*(4+2), attention},
		// The same, and the momentum is made orthogonal besides the update.
		{"muon", "weight_prediction", muon + 4*(4+2) + 4*((1+2+square)+(1+2+long)+(2+long)), 2 * attention},
	} {
		t.Run(c.name+" "+c.correction, func(t *testing.T) {
			cfg := testConfigs()[c.name]
			cfg.Losses = []string{"loss"}
			if c.correction != "" {
				cfg.Delay, cfg.Correction = 1, correctionOf(t, c.correction)
			}
			o, err := New(cfg, params)
			require.NoError(t, err)
			norms, update := programs(t, o.All())
			dev := null.New(null.Options{})
			p, err := exec.NewPlan(dev, map[string]*graph.Graph{"norms": norms, "update": update}, exec.Options{})
			require.NoError(t, err)
			s, err := p.Load()
			require.NoError(t, err)
			for program, want := range map[string]struct {
				kernels int
				copied  int64
			}{
				"norms":  {len(params) + 1, int64(4 * (len(params) + 1))},
				"update": {1 + c.kernels, 4 + 4 + 4 + c.copied}, // the sticky variable and two outputs
			} {
				labels := []string{}
				for _, k := range p.Kernels(program) {
					labels = append(labels, k.Label)
				}
				assert.Len(t, labels, want.kernels, strings.Join(labels, "\n"))
				before := dev.Counts().BytesCopied
				require.NoError(t, s.Run(program))
				assert.Equal(t, want.copied, dev.Counts().BytesCopied-before, program)
			}
			require.NoError(t, s.Close())
		})
	}
}

// State lists the variables of the update besides parameters, gradients and norm squares.
func TestState(t *testing.T) {
	for _, name := range OptimizerNames() {
		for _, correction := range CorrectionNames() {
			cfg := testConfigs()[name]
			cfg.Delay, cfg.Correction, cfg.SkipNonfinite = 1, correctionOf(t, correction), name != "sgd" && name != "adamw"
			o, err := New(cfg, testParams())
			require.NoError(t, err)
			all := allPrograms(t, o.All())
			known := map[string]graph.Type{NormSquaresVariable: o.NormSquaresType()}
			add := func(name string, typ graph.Type) {
				assert.NotContains(t, known, name)
				known[name] = typ
			}
			for _, p := range testParams() {
				add(p.Name, p.Type)
				add(p.Gradient, p.Type)
			}
			for _, s := range o.State() {
				add(s.ID, s.Type)
			}
			used := map[string]graph.Type{}
			for variant := range o.Variants() {
				for _, v := range all[updateProgram(variant)].Sources("variable") {
					used[v.Node.Op.(graph.Source).Label()] = v.Type
				}
			}
			assert.Equal(t, known, used, "%s, %s", name, correction)
		}
	}
}

func TestAssignment(t *testing.T) {
	o, err := New(testConfigs()["muon"], testParams())
	require.NoError(t, err)
	assigned := o.Assignment()
	require.Len(t, assigned, len(testParams()))
	for i, p := range testParams() {
		want := Assigned{p.Name, p.Type, "adamw", 3e-3, 0}
		if p.Matrix {
			want.Rule, want.LR = "muon", 0.02
		}
		if p.Decay {
			want.Decay = 0.1
		}
		assert.Equal(t, want, assigned[i])
	}
	assert.Equal(t, `adamw, lr 0.003, decay 0.1: embed[11,8]
adamw, lr 0.003, decay 0: layers.*.norm[8]×5, scale[1]
muon, lr 0.02, decay 0.1: layers.*.q[8,8]×5, layers.*.up[20,8]×5, layers.*.gate[20,8], layers.*.left[20,8], layers.*.right[20,8], layers.*.down[8,20]×2`, o.String())
}

func TestNewRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config, []Param){
		`there is no Config.Algorithm`: func(c *Config, _ []Param) { c.Algorithm = nil },
		`newton_schulz: found "newton", expected one of jordan, polar_express`: func(c *Config, _ []Param) {
			c.Algorithm.(*Muon).NewtonSchulz = "newton"
		},
		`scale: found "", expected one of spectral, match_rms_adamw`:     func(c *Config, _ []Param) { c.Algorithm.(*Muon).Scale = "" },
		`momentum: found 1, expected a number of at least 0 and below 1`: func(c *Config, _ []Param) { c.Algorithm.(*Muon).Momentum = 1 },
		`lr: found NaN, expected a number of at least 0 and below 1e+06`: func(c *Config,
			_ []Param) {
			c.Algorithm.(*Muon).LR = math.NaN()
		},
		`AdamW.eps: found 0, expected a number from 1e-30 to 1`: func(c *Config, _ []Param) { c.AdamW = AdamW{} },
		`betas: found 1, expected a number of at least 0 and below 1`: func(c *Config,
			_ []Param) {
			c.Algorithm = &Lion{Betas: [2]float64{0.9, 1}}
		},
		`precondition_frequency: found 0, expected an integer of at least 1`: func(c *Config,
			_ []Param) {
			c.Algorithm = &SOAP{AdamW: *DefaultAdamW()}
		},
		`weight_decay: found -1, expected a number of at least 0 and below`:     func(c *Config, _ []Param) { c.WeightDecay = -1 },
		`schedule: found "step", expected one of cosine, linear, wsd, constant`: func(c *Config, _ []Param) { c.Schedule.Name = "step" },
		`delay: found 2, expected 0 or 1`:                                       func(c *Config, _ []Param) { c.Delay = 2 },
		`correction: found "dc_asgd", expected none with delay 0`:               func(c *Config, _ []Param) { c.Correction = DefaultDCASGD() },
		`dc_lambda: found NaN`: func(c *Config, _ []Param) {
			c.Delay, c.Correction = 1, &DCASGD{Lambda: math.NaN()}
		},
		`parameter "embed" has no variable for its grad`:     func(_ *Config, p []Param) { p[0].Contributions = []string{""} },
		`"embed" is f32[11], expected a matrix`:              func(_ *Config, p []Param) { p[0].Matrix, p[0].Type = true, graph.T(graph.F32, 11) },
		`"embed" is f16[11,8], expected f32`:                 func(_ *Config, p []Param) { p[0].Type.DType = graph.F16 },
		`parameter "embed" is given twice`:                   func(_ *Config, p []Param) { p[1].Name = "embed" },
		`there is no parameter to train`:                     nil,
		`parameter "embed" has no variable for its gradient`: func(_ *Config, p []Param) { p[0].Gradient = "" },
	} {
		cfg, params := testConfigs()["muon"], testParams()
		if change == nil {
			params = nil
		} else {
			change(&cfg, params)
		}
		_, err := New(cfg, params)
		assert.ErrorContains(t, err, want)
	}
}

// SOAP has AdamW's hyperparameters for the parameters that it does not take, so those of the config are not checked.
func TestUnusedAdamWIsNotChecked(t *testing.T) {
	cfg := testConfigs()["soap"]
	cfg.AdamW = AdamW{}
	o, err := New(cfg, testParams())
	require.NoError(t, err)
	assert.Len(t, o.groups, 2)
}

func TestSchedules(t *testing.T) {
	at := func(s Schedule) func(step int) float64 { return s.Factor }
	cosine := at(Schedule{Name: "cosine", Steps: 110, Warmup: 10, MinRatio: 0.1})
	linear := at(Schedule{Name: "linear", Steps: 110, Warmup: 10, MinRatio: 0.1})
	wsd := at(Schedule{Name: "wsd", Steps: 110, Warmup: 10, MinRatio: 0.1, Decay: 20})
	fifth := at(Schedule{Name: "wsd", Steps: 100, MinRatio: 0})
	short := at(Schedule{Name: "wsd", Steps: 20, Warmup: 10, MinRatio: 0, Decay: 15})
	constant := at(Schedule{Name: "constant", Steps: 110, Warmup: 10})
	warm := at(Schedule{Name: "cosine", Steps: 5, Warmup: 5, MinRatio: 0.25})
	for _, c := range []struct {
		name string
		f    func(int) float64
		step int
		want float64
	}{
		{"cosine", cosine, 0, 0.1}, {"cosine", cosine, 9, 1}, {"cosine", cosine, 10, 1}, {"cosine", cosine, 60, 0.55},
		{"cosine", cosine, 35, 0.1 + 0.9*(1+math.Sqrt2/2)/2}, {"cosine", cosine, 110, 0.1}, {"cosine", cosine, 1000, 0.1},
		{"linear", linear, 4, 0.5}, {"linear", linear, 10, 1}, {"linear", linear, 35, 0.775}, {"linear", linear, 110, 0.1},
		{"wsd", wsd, 0, 0.1}, {"wsd", wsd, 50, 1}, {"wsd", wsd, 90, 1}, {"wsd", wsd, 100, 0.55}, {"wsd", wsd, 110, 0.1},
		{"wsd, a fifth", fifth, 80, 1}, {"wsd, a fifth", fifth, 90, 0.5}, {"wsd, a fifth", fifth, 99, 0.05},
		{"wsd, falling from the warm-up on", short, 10, 1}, {"wsd, falling from the warm-up on", short, 15, 0.5},
		{"constant", constant, 4, 0.5}, {"constant", constant, 10, 1}, {"constant", constant, 1000, 1},
		{"nothing but warm-up", warm, 4, 1}, {"nothing but warm-up", warm, 5, 0.25},
	} {
		assert.InDelta(t, c.want, c.f(c.step), 1e-15, "%s at %d", c.name, c.step)
	}
}

func TestHyperparametersFollowTheSchedule(t *testing.T) {
	cfg := testConfigs()["muon"]
	o, err := New(cfg, testParams())
	require.NoError(t, err)
	for step := range steps {
		f := cfg.Schedule.Factor(step)
		assert.Equal(t, 0.02*f, o.LR(step))
		b1, b2 := 1-math.Pow(0.9, float64(step+1)), 1-math.Pow(0.95, float64(step+1))
		want := Hyperparameters{{"muon/weight_decay", 0.02 * f * 0.1}, {"muon/lr", 0.02 * f},
			{"adamw/weight_decay", 3e-3 * f * 0.1}, {"adamw/lr_over_bias1", 3e-3 * f / b1}, {"adamw/rsqrt_bias2", 1 / math.Sqrt(b2)}}
		got := o.Hyperparameters(step, step > 0)
		require.Len(t, got, len(want))
		for i, h := range got {
			assert.Equal(t, want[i].Name, h.Name)
			assert.InEpsilon(t, want[i].Value, h.Value, 1e-12, h.Name)
			assert.Equal(t, float32(h.Value), got.Float32s()[i])
		}
	}
}

// The vector of a step has the same names at every step, whatever the optimizer.
func TestHyperparametersKeepTheirNames(t *testing.T) {
	names := func(hs Hyperparameters) []string { return column(hs, func(h Hyperparameter) string { return h.Name }) }
	for name, cfg := range testConfigs() {
		o, err := New(cfg, testParams())
		require.NoError(t, err)
		first := names(o.Hyperparameters(0, false))
		for step := range steps {
			assert.Equal(t, first, names(o.Hyperparameters(step, true)), name)
		}
	}
}
