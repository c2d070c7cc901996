// Package optim builds the update of a training step as graphs, so that it runs as shaders: SGD with momentum, AdamW, Muon,
// NorMuon, SOAP, Lion, Adan and MARS, exact clipping by the global norm of the gradient, the refusal to apply what is not
// finite, and the corrections of gradients that are one step old. The parameters of a model may be spread over several
// stages: each stage sums the squares of its gradients (Part.Votes), all sums are brought together, and each applies the
// same decision (Part.Update). Learning-rate schedules and whatever else changes from step to step are computed on the host
// in float64 and sent as one small vector.
package optim

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// The names of the update's input, outputs and variables.
const (
	HyperInput     = "hyper"        // f32 [n], the Hyper of the step
	NormOutput     = "grad_norm"    // f32 [1], global, before clipping
	RefusedOutput  = "refused"      // u32 [1]: Applied, Refused or Overflowed
	HaltedVariable = "optim/halted" // u32 [1]: once 1, no update is applied any more; absent with SkipNonfinite
	BegunVariable  = "optim/begun"  // u32 [1]: 1 once an update was applied; only where Begins
	VotesVariable  = "optim/votes"  // f32 [n+1]: the sum of squares of each parameter's gradient, in the order of New, and the loss
	OwnVariable    = "optim/own"    // f32 [n+1]: those that one part knows, in the order of its Params
)

// Param is a tensor to train. Its variable has its name.
type Param struct {
	Name     string
	Type     graph.Type // f32
	Layer    string     // the scope of the layer that it belongs to; no part owns some parameters of a layer only
	Gradient string     // the variable of Type that holds the batch's gradient
	// Contributions are variables of Type to be added to the gradient: it is their sum in order, plus Gradient.
	Contributions []string
	Matrix        bool // a hidden layer's matrix [out, in]: for what is meant for such
	Decay         bool // weight decay acts on it
}

// Config chooses the optimizer. LR and WeightDecay are those of its own parameters: with sgd, adamw, lion and adan all of
// them, with muon and normuon the hidden layers' matrices, with soap those of them of which a side is no longer than
// MaxPrecondDim, with mars all matrices. The rest goes to AdamW with the numbers AdamW, but under soap with LR, Betas and Eps.
type Config struct {
	Name         string // of a rule: adamw, sgd, muon, normuon, lion, adan, mars, soap
	LR           float64
	Momentum     float64 // of sgd, muon and normuon
	Nesterov     bool    // of sgd, muon and normuon
	WeightDecay  float64
	NewtonSchulz string    // of muon and normuon: jordan, polar_express
	Scale        string    // of muon and normuon: spectral: √max(1, rows/cols); match_rms_adamw: 0.2·√max(rows, cols)
	Betas        []float64 // of lion, mars and soap two, of adan three: 1 − the weight of what is new in the running means
	Eps          float64   // of adan, mars and soap
	Beta2        float64   // of normuon: of its second moments
	Gamma        float64   // of mars: how much of the gradient's change is added to it

	ShampooBeta           float64 // of soap: of its preconditioners
	PreconditionFrequency int     // of soap: steps from one renewal of the basis to the next
	MaxPrecondDim         int     // of soap: a matrix's side that is longer has no preconditioner

	Clip  float64 // largest global norm of the gradient; 0 does not clip
	AdamW AdamWConfig
	Loss  string // a variable f32 [1] that must be finite for the update to be applied; "" for none
	// LossContributions are variables like Loss, to be added to it in order: what other replicas have of the batch.
	LossContributions []string
	Schedule          Schedule
	Factor            func(step int) float64 // nil: Schedule's. The factor on all learning rates at a step, counted from 0

	// Delay is the age of gradients in steps. With 0 the new weights x_{t+1} = (1 − lr·λ)·x_t − u_t replace those in the
	// parameter's variable. With 1 the parameter's variable holds x_{t+1}, u_t is of the gradient taken at x_t, and
	// x_{t+2} = (1 − lr_t·λ)·x_{t+1} − u_t replaces the gradient in its variable.
	Delay      int
	Correction string     // of the delay: none ("" too), dc_asgd, error_feedback, weight_prediction
	DCLambda   float64    // of dc_asgd
	LossScale  *LossScale // nil: gradients are those of the loss itself
	// SkipNonfinite passes over a batch whose gradient or loss is not finite and goes on with the next. Otherwise such a
	// batch halts the optimizer for good.
	SkipNonfinite bool
}

// betas refuses another number of them.
func (c Config) betas(n int) ([]float64, error) {
	if len(c.Betas) != n {
		return nil, fmt.Errorf("optimizer.betas: found %v, expected %d numbers for %s", c.Betas, n, c.Name)
	}
	return c.Betas, nil
}

// AdamWConfig are AdamW's own numbers. Under adamw itself, LR is not used.
type AdamWConfig struct {
	LR    float64
	Betas [2]float64
	Eps   float64
}

// group is the parameters under one rule.
type group struct {
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

// New assigns all parameters of a model to rules. It refuses names and numbers that it does not know.
func New(cfg Config, params []Param) (*Optimizer, error) {
	if err := cfg.Schedule.check(); err != nil {
		return nil, err
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	if cfg.LossScale != nil {
		if err := cfg.LossScale.check(); err != nil {
			return nil, err
		}
	}
	c, err := newCorrection(cfg)
	if err != nil {
		return nil, err
	}
	made, ok := rules[cfg.Name]
	if !ok {
		return nil, fmt.Errorf("optimizer.name: found %q, expected one of %s", cfg.Name, names(rules))
	}
	rule, err := made.make(cfg)
	if err != nil {
		return nil, err
	}
	o := &Optimizer{cfg: cfg, params: params, correction: c}
	own, left := group{rule: rule, lr: cfg.LR}, cfg.AdamW
	if made.rest != nil {
		left = made.rest(cfg)
	}
	rest := group{rule: &adamW{left.Betas, left.Eps}, lr: left.LR}
	for _, p := range params {
		if made.takes == nil || made.takes(cfg, p) {
			own.params = append(own.params, p)
		} else {
			rest.params = append(rest.params, p)
		}
	}
	o.groups = []group{own}
	if made.takes != nil {
		o.groups = append(o.groups, rest)
	}
	return o, nil
}

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
		case p.Matrix && len(p.Type.Shape) != 2:
			return fmt.Errorf("parameter %q is %v, expected a matrix", p.Name, p.Type)
		case seen[p.Name]:
			return fmt.Errorf("parameter %q is given twice", p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

// Losses are the variables whose sum must be finite, Config.Loss the last of them; none where no loss is asked for.
func (o *Optimizer) Losses() []string {
	if o.cfg.Loss == "" {
		return nil
	}
	return append(slices.Clone(o.cfg.LossContributions), o.cfg.Loss)
}

func (c Config) factor(step int) float64 {
	if c.Factor != nil {
		return c.Factor(step)
	}
	return c.Schedule.Factor(step)
}

// LR is the learning rate of a step, counted from 0, of the optimizer's own parameters.
func (o *Optimizer) LR(step int) float64 { return o.cfg.LR * o.cfg.factor(step) }

// Hyper is the input "hyper" of a step, counted from 0; begun is as Variant has it.
func (o *Optimizer) Hyper(step int, begun bool) []float32 {
	var h []float32
	for _, x := range o.hyper(step, begun) {
		h = append(h, float32(x))
	}
	return h
}

// hyper is, group after group, the rate of weight decay and the rule's numbers.
func (o *Optimizer) hyper(step int, begun bool) (h []float64) {
	factor := o.cfg.factor(step)
	for _, g := range o.groups {
		rate := g.lr * factor
		decay := rate * o.cfg.WeightDecay
		if _, ok := g.rule.(Beginning); ok && !begun {
			decay = 0
		}
		h = append(append(h, decay), g.rule.Numbers(step, rate)...)
	}
	return h
}

func stateName(kind, param string) string { return "optim/" + kind + "/" + param }

// State lists the variables that outlive a step besides the parameters; all but the loss scale begin as zero.
func (o *Optimizer) State() []graph.Named { return o.state(o.params) }

func (o *Optimizer) state(params []Param) (vs []graph.Named) {
	if !o.cfg.SkipNonfinite {
		vs = append(vs, graph.Named{ID: HaltedVariable, Type: graph.T(graph.U32, 1)})
	}
	if o.Begins() {
		vs = append(vs, graph.Named{ID: BegunVariable, Type: graph.T(graph.U32, 1)})
	}
	vs = append(vs, o.scaleState()...)
	for _, g := range o.groups {
		for _, p := range g.of(params) {
			for _, s := range slices.Concat(g.rule.State(p), kinds(p, o.correction.State()...)) {
				vs = append(vs, graph.Named{ID: stateName(s.ID, p.Name), Type: s.Type})
			}
		}
	}
	return vs
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

// Variants is the number of programs that the update has (see Varied).
func (o *Optimizer) Variants() int {
	if v, ok := o.groups[0].rule.(Varied); ok {
		return v.Variants()
	}
	return 1
}

// Begins tells whether only BegunVariable knows if an update was applied before a step, and Variant asks: the first ones may have been
// passed over. Else one was before each step but the first.
func (o *Optimizer) Begins() bool {
	_, begins := o.groups[0].rule.(Beginning)
	return begins && (o.cfg.SkipNonfinite || o.Scaled())
}

// Variant is the program that updates after a step, counted from 0; begun tells whether an update was applied before.
func (o *Optimizer) Variant(step int, begun bool) int {
	if b, ok := o.groups[0].rule.(Beginning); ok && !begun {
		return b.Begin()
	}
	if v, ok := o.groups[0].rule.(Varied); ok {
		return v.Variant(step)
	}
	return 0
}

// Line says what a parameter is under.
type Line struct {
	Param string
	Type  graph.Type
	Rule  string
	LR    float64 // before the schedule
	Decay float64 // weight decay
}

// Assignment has a line for each parameter, in the order given to New.
func (o *Optimizer) Assignment() []Line {
	of := map[string]Line{}
	for _, g := range o.groups {
		for _, p := range g.params {
			l := Line{Param: p.Name, Type: p.Type, Rule: g.rule.Name(), LR: g.lr}
			if p.Decay {
				l.Decay = o.cfg.WeightDecay
			}
			of[p.Name] = l
		}
	}
	var lines []Line
	for _, p := range o.params {
		lines = append(lines, of[p.Name])
	}
	return lines
}

var number = regexp.MustCompile(`\.\d+\.`)

// String tells the assignment, a line for the parameters whose names differ by a number only.
func (o *Optimizer) String() string {
	var texts []string
	width := 0
	for _, g := range o.groups {
		width = max(width, len(g.rule.Name()))
	}
	count := map[string]int{}
	for _, l := range o.Assignment() {
		name := number.ReplaceAllString(l.Param, ".*.")
		text := fmt.Sprintf("%-*s  lr %-8g decay %-6g %s %v", width, l.Rule, l.LR, l.Decay, name, l.Type.Shape)
		if count[text]++; count[text] == 1 {
			texts = append(texts, text)
		}
	}
	for i, t := range texts {
		if count[t] > 1 {
			texts[i] = fmt.Sprintf("%s × %d", t, count[t])
		}
	}
	return strings.Join(texts, "\n")
}
