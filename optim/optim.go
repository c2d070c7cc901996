// Package optim builds the update of a training step as a graph, so that it runs as shaders: SGD with momentum, AdamW and
// Muon, exact clipping by the global norm of the gradient, and the refusal to apply what is not finite. Learning-rate
// schedules and whatever else changes from step to step are computed on the host in float64 and sent as one small vector.
package optim

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// The names of the update's input, outputs and sticky variable.
const (
	HyperInput     = "hyper"        // f32 [n], the Hyper of the step
	NormOutput     = "grad_norm"    // f32 [1], global, before clipping
	OKOutput       = "ok"           // u32 [1]: 1 when the update was applied
	HaltedVariable = "optim/halted" // u32 [1]: once 1, no update is applied any more
)

// Param is a tensor to train. Its variable has its name.
type Param struct {
	Name     string
	Type     graph.Type // f32
	Gradient string     // the variable of Type that holds the batch's gradient
	Matrix   bool       // a hidden layer's matrix [out, in]: Muon's, if there is Muon
	Decay    bool       // weight decay acts on it
}

// Config chooses the optimizer. LR and WeightDecay are those of its own parameters; what Muon leaves goes to AdamW with
// AdamW.LR. Betas and Eps are AdamW's in either case.
type Config struct {
	Name         string // sgd, adamw, muon
	LR           float64
	Momentum     float64 // of sgd and muon
	Nesterov     bool    // of sgd and muon
	WeightDecay  float64
	NewtonSchulz string  // of muon: jordan, polar_express
	Scale        string  // of muon: spectral: √max(1, rows/cols); match_rms_adamw: 0.2·√max(rows, cols)
	Clip         float64 // largest global norm of the gradient; 0 does not clip
	AdamW        AdamWConfig
	Loss         string // a variable f32 [1] that must be finite for the update to be applied; "" for none
	Schedule     Schedule
}

// AdamWConfig are AdamW's own numbers; LR is used under muon only.
type AdamWConfig struct {
	LR    float64
	Betas [2]float64
	Eps   float64
}

// Rule is the mathematics of an optimizer: from gradients to updates. What is done with an update is not its business.
type Rule interface {
	Name() string
	// State names the kinds of state that it keeps: for each, every parameter has a variable of its own type, first zero.
	State() []string
	// Numbers are what changes with the step (from 0), given its learning rate; their count is fixed.
	Numbers(step int, rate float64) []float64
	// Update adds the nodes that compute the updates, in the order of ts. Numbers are f32 [1] each.
	Update(ts []Tensor, numbers []*graph.Value) []Update
}

// Tensor is what a Rule is given of a parameter.
type Tensor struct {
	Param
	Gradient *graph.Value   // clipped
	State    []*graph.Value // in the order of Rule.State
}

// Update is what a Rule makes of it: U, which includes the learning rate and is to be subtracted from the weights, and
// the new state. Weight decay is no part of U.
type Update struct {
	U     *graph.Value
	State []*graph.Value
}

// group is the parameters under one rule.
type group struct {
	rule   Rule
	lr     float64
	params []Param
}

// Optimizer is a config applied to parameters.
type Optimizer struct {
	cfg    Config
	params []Param
	groups []group
}

// New assigns the parameters to rules. It refuses names and numbers that it does not know.
func New(cfg Config, params []Param) (*Optimizer, error) {
	if err := cfg.Schedule.check(); err != nil {
		return nil, err
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	adam := &adamW{cfg.AdamW.Betas, cfg.AdamW.Eps}
	o := &Optimizer{cfg: cfg, params: params}
	switch cfg.Name {
	case "sgd":
		o.groups = []group{{&sgd{cfg.Momentum, cfg.Nesterov}, cfg.LR, params}}
	case "adamw":
		o.groups = []group{{adam, cfg.LR, params}}
	case "muon":
		m, err := newMuon(cfg)
		if err != nil {
			return nil, err
		}
		matrices, rest := group{rule: m, lr: cfg.LR}, group{rule: adam, lr: cfg.AdamW.LR}
		for _, p := range params {
			if p.Matrix {
				matrices.params = append(matrices.params, p)
			} else {
				rest.params = append(rest.params, p)
			}
		}
		o.groups = []group{matrices, rest}
	default:
		return nil, fmt.Errorf("optimizer.name: found %q, expected one of muon, adamw, sgd", cfg.Name)
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
		case p.Gradient == "":
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

// LR is the learning rate of a step, counted from 0, of the optimizer's own parameters.
func (o *Optimizer) LR(step int) float64 { return o.cfg.LR * o.cfg.Schedule.Factor(step) }

// Hyper is the input "hyper" of a step, counted from 0.
func (o *Optimizer) Hyper(step int) []float32 {
	var h []float32
	for _, x := range o.hyper(step) {
		h = append(h, float32(x))
	}
	return h
}

// hyper is, group after group, the rate of weight decay and the rule's numbers.
func (o *Optimizer) hyper(step int) (h []float64) {
	factor := o.cfg.Schedule.Factor(step)
	for _, g := range o.groups {
		rate := g.lr * factor
		h = append(append(h, rate*o.cfg.WeightDecay), g.rule.Numbers(step, rate)...)
	}
	return h
}

func stateName(kind, param string) string { return "optim/" + kind + "/" + param }

// State lists the variables that outlive a step besides the parameters; all begin as zero.
func (o *Optimizer) State() []graph.Named {
	vs := []graph.Named{{ID: HaltedVariable, Type: graph.T(graph.U32, 1)}}
	for _, g := range o.groups {
		for _, p := range g.params {
			for _, kind := range g.rule.State() {
				vs = append(vs, graph.Named{ID: stateName(kind, p.Name), Type: p.Type})
			}
		}
	}
	return vs
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
	count := map[string]int{}
	for _, l := range o.Assignment() {
		name := number.ReplaceAllString(l.Param, ".*.")
		text := fmt.Sprintf("%-6s lr %-8g decay %-6g %s %v", l.Rule, l.LR, l.Decay, name, l.Type.Shape)
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
