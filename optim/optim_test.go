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

// What is not finite, in a gradient or in the loss, changes no bit, and neither does any step after it.
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
					for p, g := range numbers(params, step) {
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
				assert.False(t, ok, "a later step is as good as none")
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

// On WebGPU's least devices: one kernel updates a parameter under AdamW and SGD, with each correction of the delay too, and
// nothing of a parameter's size moves but into Muon's batches.
func TestKernelsAndCopies(t *testing.T) {
	params := llama()
	attention := int64(4 * 4 * 4 * 128 * 128) // bytes of the batches of four
	// The momentum of a matrix, its norm and division, three products a step. Several matrices of one shape are gathered
	// by copies (four) or by their first kernel (two), and each is then applied on its own; one alone by the last product.
	four, two, one := 4+1+2+3*5+4, 2+1+2+3*5+2, 1+2+3*5
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
		// What is sliced off a batch is stored already, so nothing joins its use for the weights with that for the state.
		{"muon", "error_feedback", muon + 4*(4+2), attention},
		// The same, and the momentum is made orthogonal besides the update.
		{"muon", "weight_prediction", muon + 4*(4+2) + 4*((1+2+3*5)+(1+2+3*5)+(2+3*5)), 2 * attention},
	} {
		t.Run(c.name+" "+c.correction, func(t *testing.T) {
			cfg := testConfigs()[c.name]
			cfg.Loss, cfg.Correction = "loss", c.correction
			if c.correction != "" {
				cfg.Delay = 1
			}
			o, err := New(cfg, params)
			require.NoError(t, err)
			votes, update := programs(t, o.All())
			dev := null.New(null.Options{})
			p, err := exec.NewPlan(dev, map[string]*graph.Graph{"votes": votes, "update": update}, exec.Options{})
			require.NoError(t, err)
			s, err := p.Load()
			require.NoError(t, err)
			for program, want := range map[string]struct {
				kernels int
				copied  int64
			}{
				"votes":  {len(params) + 1, int64(4 * (len(params) + 1))},
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

// State is what the update reads besides parameters, gradients and votes.
func TestState(t *testing.T) {
	for name, r := range rules {
		for correction := range corrections {
			cfg := testConfigs()[name]
			cfg.Delay, cfg.Correction, cfg.SkipNonfinite = 1, correction, r.takes != nil
			o, err := New(cfg, testParams())
			require.NoError(t, err)
			all := allPrograms(t, o.All())
			known := map[string]graph.Type{VotesVariable: o.VotesType()}
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
	lines := o.Assignment()
	require.Len(t, lines, len(testParams()))
	for i, p := range testParams() {
		want := Line{p.Name, p.Type, "adamw", 3e-3, 0}
		if p.Matrix {
			want.Rule, want.LR = "muon", 0.02
		}
		if p.Decay {
			want.Decay = 0.1
		}
		assert.Equal(t, want, lines[i])
	}
	assert.Equal(t, `adamw  lr 0.003    decay 0.1    embed [11,8]
adamw  lr 0.003    decay 0      layers.*.norm [8] × 5
muon   lr 0.02     decay 0.1    layers.*.q [8,8] × 5
muon   lr 0.02     decay 0.1    layers.*.up [20,8] × 5
muon   lr 0.02     decay 0.1    layers.*.gate [20,8]
muon   lr 0.02     decay 0.1    layers.*.left [20,8]
muon   lr 0.02     decay 0.1    layers.*.right [20,8]
muon   lr 0.02     decay 0.1    layers.*.down [8,20] × 2
adamw  lr 0.003    decay 0      scale [1]`, o.String())
}

func TestNewRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config, []Param){
		`optimizer.name: found "adam", expected one of adamw, adan, lion, mars, muon, normuon, sgd, soap`: func(c *Config, _ []Param) { c.Name = "adam" },
		`optimizer.newton_schulz: found "newton"`:                                                         func(c *Config, _ []Param) { c.NewtonSchulz = "newton" },
		`optimizer.scale: found ""`:                                                                       func(c *Config, _ []Param) { c.Scale = "" },
		`optimizer.betas: found [0.9], expected 2 numbers for soap`:                                       func(c *Config, _ []Param) { c.Name, c.Betas = "soap", []float64{0.9} },
		`optimizer.betas: found [], expected 3 numbers for adan`:                                          func(c *Config, _ []Param) { c.Name = "adan" },
		`optimizer.soap.precondition_frequency: found 0, expected at least 1`:                             func(c *Config, _ []Param) { c.Name, c.Betas = "soap", []float64{0.9, 0.9} },
		`lr.schedule: found "step"`:                                                                       func(c *Config, _ []Param) { c.Schedule.Name = "step" },
		`pipeline.delay: found 2, expected 0 or 1`:                                                        func(c *Config, _ []Param) { c.Delay = 2 },
		`pipeline.correction: found "fix", expected one of dc_asgd, error_feedback, none, weight_prediction`: func(c *Config, _ []Param) {
			c.Delay, c.Correction = 1, "fix"
		},
		`pipeline.correction: found "dc_asgd", expected none with pipeline.delay 0`: func(c *Config, _ []Param) { c.Correction = "dc_asgd" },
		`optimizer.dc_lambda: found NaN`: func(c *Config, _ []Param) {
			c.Delay, c.Correction, c.DCLambda = 1, "dc_asgd", math.NaN()
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

func TestHyperFollowsTheSchedule(t *testing.T) {
	cfg := testConfigs()["muon"]
	o, err := New(cfg, testParams())
	require.NoError(t, err)
	for step := range steps {
		f := cfg.Schedule.Factor(step)
		assert.Equal(t, cfg.LR*f, o.LR(step))
		b1, b2 := 1-math.Pow(0.9, float64(step+1)), 1-math.Pow(0.95, float64(step+1))
		want := []float64{0.02 * f * 0.1, 0.02 * f, 3e-3 * f * 0.1, 3e-3 * f / b1, 1 / math.Sqrt(b2)}
		for i, x := range o.Hyper(step, step > 0) {
			assert.InEpsilon(t, want[i], x, 1e-6)
		}
		assert.Len(t, o.Hyper(step, step > 0), len(want))
	}
}
