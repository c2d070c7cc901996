package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// The names of the update's input, outputs and variables. The names in checkpoints never change.
const (
	HyperparametersInput = "hyper"        // f32 [n], Optimizer.Hyperparameters of the step
	NormOutput           = "grad_norm"    // f32 [1], global, before clipping
	StatusOutput         = "refused"      // u32 [1]: Applied, Refused or Overflowed
	HaltedVariable       = "optim/halted" // u32 [1]: once 1, no update is applied any more; absent with SkipNonfinite
	// InitializedVariable is u32 [1]: 1 once an update was applied. It exists where Optimizer.TracksInitialization.
	InitializedVariable = "optim/begun"
	// NormSquaresVariable is f32 [n+1]: the sum of squares of each parameter's gradient, in the order of New, and the
	// loss. It is 0 of a balancing bias.
	NormSquaresVariable = "optim/norm_squares"
	// LocalNormSquaresVariable is f32 [n+1]: the sums of squares of one shard's parameters, in the order of its Params,
	// and the loss or 0.
	LocalNormSquaresVariable = "optim/local_norm_squares"
)

// Param is a tensor to train. Its variable has its name.
type Param struct {
	Name     string
	Type     graph.Type // f32
	Layer    string     // its unit of the model; a shard owns all parameters of a unit or none
	Gradient string     // the variable of Type that holds the batch's gradient
	// Contributions are variables of Type. The whole gradient is their sum in order, plus Gradient.
	Contributions []string
	Matrix        bool // matrices of a hidden layer, which Muon and its like take: [out, in], or a stack [n, out, in]
	AdamW         bool // AdamW updates it, although its shape suits Config.Algorithm
	Decay         bool // weight decay acts on it
	// BalancingBias is a parameter whose gradient is the load of each expert. BalanceRate is its rate γ; with 0 it
	// stays. With ProportionalBalance its steps are proportional to the difference of the mean load and the load.
	BalancingBias       bool
	BalanceRate         float64
	ProportionalBalance bool
}

// stacked reports whether the parameter is a stack of matrices.
func (p Param) stacked() bool { return len(p.Type.Shape) == 3 }

// matrices returns the extents of a stack of matrices, none for a single matrix, and the extents of one matrix: out and
// in.
func (p Param) matrices() (stack graph.Shape, sides [2]int) {
	s := p.Type.Shape
	n := len(s) - 2
	return s[:n], [2]int{s[n], s[n+1]}
}

// Config chooses the optimizer and how its updates are applied.
type Config struct {
	Algorithm   Algorithm // of the parameters that it takes
	AdamW       AdamW     // of the other parameters, if Algorithm ReadsAdamW
	WeightDecay float64   // λ, decoupled: weights shrink by lr·λ
	Clip        float64   // largest global norm of the gradient; 0 does not clip
	// Losses are variables f32 [1] whose sum must be finite for the update to be applied: the loss of each replica, the
	// one that shards own last. None: the loss is not checked.
	Losses   []string
	Schedule Schedule
	Factor   func(step int) float64 // on all learning rates at a step, counted from 0; nil: the factor of Schedule

	// Delay is 0 if all gradients are taken at x_t. The new weights x_{t+1} = (1 − lr·λ)·x_t − u_t replace x_t in the
	// parameter's variable. Delay is 1 if the gradients of some or all microbatches are taken at x_{t−1}. Then x_{t+1}
	// replaces the gradient in its variable. u_t is computed from the mean gradient of all microbatches in both cases.
	Delay int
	// Staleness is the share of the microbatches whose gradients are taken at x_{t−1}, with Delay 1. 0 is all of them.
	Staleness  float64
	Correction Correction  // of the delay; nil: none
	LossScale  *LossScale  // nil: gradients are taken of the loss itself
	Moments    graph.DType // in which state is stored: F32, or BF16 with stochastic rounding
	Seed       uint64      // of that rounding
	// SkipNonfinite skips a batch whose gradient or loss is not finite. Otherwise such a batch halts the optimizer for
	// good.
	SkipNonfinite bool
}

// check returns a *FieldError for the first value that is out of range.
func (c *Config) check() error {
	if err := c.checkMoments(); err != nil {
		return err
	}
	fields := slices.Concat(c.Algorithm.Fields(), c.Correction.Fields(), []Field{WeightDecay(&c.WeightDecay)})
	if c.Factor == nil {
		fields = append(fields, c.Schedule.Fields()...)
	}
	if err := check(fields); err != nil {
		return err
	}
	_, uncorrected := c.Correction.(*NoCorrection)
	switch {
	case c.Delay != 0 && c.Delay != 1:
		return fielderror.New("delay", c.Delay, "0 or 1")
	case !(c.Staleness >= 0 && c.Staleness <= float64(c.Delay)):
		return fielderror.New("staleness", c.Staleness, "0 to %d with delay %d", c.Delay, c.Delay)
	case c.Delay == 0 && !uncorrected:
		return fielderror.New("correction", CorrectionName(c.Correction), "none with delay 0, with which no gradient is old")
	case c.LossScale != nil:
		return c.LossScale.check()
	}
	return nil
}

// group is the parameters under one rule.
type group struct {
	name   string // of the rule, in the table Optimizers
	rule   Rule
	lr     float64
	params []Param
}

// Optimizer is a config applied to the parameters of a model.
type Optimizer struct {
	cfg        Config
	params     []Param
	groups     []group
	correction Correction
}

// New assigns all parameters of a model to rules. A value of cfg that is out of range is a *FieldError.
func New(cfg Config, params []Param) (*Optimizer, error) {
	if cfg.Algorithm == nil {
		return nil, errors.New("there is no Config.Algorithm")
	}
	if cfg.Correction == nil {
		cfg.Correction = &NoCorrection{}
	}
	if cfg.Delay == 1 && cfg.Staleness == 0 {
		cfg.Staleness = 1
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	o := &Optimizer{cfg: cfg, params: params, correction: cfg.Correction}
	own, rest := newGroup(cfg.Algorithm), newGroup(&cfg.AdamW)
	algorithm, hasAdamW := cfg.Algorithm.(withAdamW)
	if hasAdamW {
		rest = newGroup(algorithm.adamW())
	}
	for _, p := range params {
		if p.BalancingBias {
			continue
		}
		g := &rest
		if cfg.Algorithm.takes(p) {
			g = &own
		}
		g.params = append(g.params, p)
	}
	o.groups = []group{own}
	if len(rest.params) > 0 {
		if err := check(cfg.AdamW.Fields()); err != nil && !hasAdamW {
			return nil, fielderror.In("AdamW", err)
		}
		o.groups = append(o.groups, rest)
	}
	return o, nil
}

func newGroup(a Algorithm) group { return group{name: Name(a), rule: a.rule(), lr: a.LearningRate()} }

func checkParams(params []Param) error {
	if len(params) == 0 {
		return errors.New("there is no parameter to train")
	}
	seen := map[string]bool{}
	for _, p := range params {
		switch {
		case p.Type.DType != graph.F32:
			return fmt.Errorf("parameter %q is %v, expected f32", p.Name, p.Type)
		case p.Gradient == "" || slices.Contains(p.Contributions, ""):
			return fmt.Errorf("parameter %q has no variable for its gradient", p.Name)
		case p.Matrix && len(p.Type.Shape) != 2 && len(p.Type.Shape) != 3:
			return fmt.Errorf("parameter %q is %v, expected a matrix or a stack of them", p.Name, p.Type)
		case p.Matrix && p.AdamW:
			return fmt.Errorf("parameter %q is both for the optimizer of matrices and for AdamW", p.Name)
		case seen[p.Name]:
			return fmt.Errorf("parameter %q is given twice", p.Name)
		}
		if err := p.checkBalance(); err != nil {
			return err
		}
		seen[p.Name] = true
	}
	return nil
}

// Scaled reports whether gradients are taken of a multiple of the loss.
func (o *Optimizer) Scaled() bool { return o != nil && o.cfg.LossScale != nil }

// Scaling is the loss scale; nil if there is none.
func (o *Optimizer) Scaling() *Scaling {
	if !o.Scaled() {
		return nil
	}
	return &Scaling{scale: *o.cfg.LossScale, delay: o.cfg.Delay}
}

// Losses is Config.Losses.
func (o *Optimizer) Losses() []string { return slices.Clone(o.cfg.Losses) }

func (c Config) factor(step int) float64 {
	if c.Factor != nil {
		return c.Factor(step)
	}
	return c.Schedule.Factor(step)
}

// LR is the learning rate at a step, counted from 0, of the parameters that Config.Algorithm takes.
func (o *Optimizer) LR(step int) float64 { return o.groups[0].lr * o.cfg.factor(step) }

func stateName(kind, param string) string { return "optim/" + kind + "/" + param }

// State lists the variables that outlive a step, besides the parameters. All but the loss scale start as zero.
func (o *Optimizer) State() []graph.Named { return o.state(o.params) }

func (o *Optimizer) state(params []Param) (vs []graph.Named) {
	if !o.cfg.SkipNonfinite {
		vs = append(vs, graph.Named{ID: HaltedVariable, Type: graph.T(graph.U32, 1)})
	}
	if o.TracksInitialization() {
		vs = append(vs, graph.Named{ID: InitializedVariable, Type: graph.T(graph.U32, 1)})
	}
	vs = append(vs, o.Scaling().state()...)
	for _, g := range o.groups {
		for _, p := range g.of(params) {
			for _, s := range slices.Concat(o.ruleState(g.rule, p), o.correctionState(p)) {
				vs = append(vs, graph.Named{ID: stateName(s.ID, p.Name), Type: s.Type})
			}
		}
	}
	return vs
}

// Ahead names the state variable that Settled adds to a parameter's newest weights. It is empty without such a
// correction, and of a balancing bias.
func (o *Optimizer) Ahead(param string) string {
	kind := o.correction.Ahead()
	if kind == "" || o.params[o.position(param)].BalancingBias {
		return ""
	}
	return stateName(kind, param)
}

// position is the place of a parameter in the order of New.
func (o *Optimizer) position(param string) int {
	return slices.IndexFunc(o.params, func(p Param) bool { return p.Name == param })
}

// of is the group's parameters among the given ones.
func (g group) of(params []Param) (ps []Param) {
	for _, p := range params {
		if slices.ContainsFunc(g.params, func(q Param) bool { return q.Name == p.Name }) {
			ps = append(ps, p)
		}
	}
	return ps
}

// Variants is the number of programs of the update (see Varied).
func (o *Optimizer) Variants() int {
	if v, ok := o.groups[0].rule.(Varied); ok {
		return v.Variants()
	}
	return 1
}

// TracksInitialization reports whether only InitializedVariable shows if an update was applied before a step: the first
// batches may have been skipped, and the rule has an initialization step. Otherwise every step but the first has one
// before.
func (o *Optimizer) TracksInitialization() bool {
	_, initializing := o.groups[0].rule.(Initializing)
	return initializing && (o.cfg.SkipNonfinite || o.Scaled())
}

// Variant is the program that updates after a step, counted from 0. initialized reports whether an update was applied
// before.
func (o *Optimizer) Variant(step int, initialized bool) int {
	if r, ok := o.groups[0].rule.(Initializing); ok && !initialized {
		return r.InitializationVariant()
	}
	if v, ok := o.groups[0].rule.(Varied); ok {
		return v.Variant(step)
	}
	return 0
}
