package optim

import (
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Correction changes what is made of a gradient that is one step old, elementwise or not. Its state is of the parameter's
// type and begins as zero; s has it in the order of State, as the batch before left it.
type Correction interface {
	Name() string
	// State names the kinds of state that it keeps; none is a rule's kind.
	State() []string
	// Gradient is what the rule is given in place of the (clipped) t.Gradient.
	Gradient(t Tensor, s []*graph.Value) *graph.Value
	// Step is what is subtracted from the newest weights in place of u.U, decay aside, and the new state.
	Step(t Tensor, u Update, s []*graph.Value) (step *graph.Value, state []*graph.Value)
	// Ahead is the kind of state that the newest weights lack of holding every update and no anticipation: y = x + it.
	// "" if they anticipate nothing.
	Ahead() string
}

// AppliedState is a kind of state that a correction may name: the optimizer keeps in it what was last subtracted from the
// weights, decay included; zero after a batch that was passed over. Step gives nil for it.
const AppliedState = "applied"

// corrections holds what can be named by pipeline.correction; the files of the corrections add to it while the package
// initialises.
var corrections = map[string]func(Config) (Correction, error){"none": func(Config) (Correction, error) { return uncorrected{}, nil }}

func newCorrection(cfg Config) (Correction, error) {
	if cfg.Delay != 0 && cfg.Delay != 1 {
		return nil, fmt.Errorf("pipeline.delay: found %d, expected 0 or 1", cfg.Delay)
	}
	if cfg.Correction == "" {
		return uncorrected{}, nil
	}
	c, ok := corrections[cfg.Correction]
	if !ok {
		return nil, fmt.Errorf("pipeline.correction: found %q, expected one of %s", cfg.Correction, names(corrections))
	}
	if cfg.Delay == 0 && cfg.Correction != "none" {
		return nil, fmt.Errorf("pipeline.correction: found %q, expected none with pipeline.delay 0: no gradient is old", cfg.Correction)
	}
	return c(cfg)
}

// uncorrected leaves everything as it is. Corrections embed it for what they do not change.
type uncorrected struct{}

func (uncorrected) Name() string                                     { return "none" }
func (uncorrected) State() []string                                  { return nil }
func (uncorrected) Gradient(t Tensor, _ []*graph.Value) *graph.Value { return t.Gradient }
func (uncorrected) Ahead() string                                    { return "" }
func (uncorrected) Step(_ Tensor, u Update, _ []*graph.Value) (*graph.Value, []*graph.Value) {
	return u.U, nil
}

// Ahead names the state variable that Settled adds to a parameter's newest weights; "" where they anticipate nothing.
func (o *Optimizer) Ahead(param string) string {
	if kind := o.correction.Ahead(); kind != "" {
		return stateName(kind, param)
	}
	return ""
}

// Settled is a parameter's weights without anticipation: given the newest ones (with delay, those not yet trained at) and
// what the variable Ahead holds after the same batch (nil where there is none), it returns those that hold every update so
// far just once. With error feedback and with weight prediction the weights x_{t+1} = 2y_{t+1} − y_t, or the like, are
// ahead of these y.
func Settled(newest, ahead []float32) []float32 {
	y := slices.Clone(newest)
	for i, a := range ahead {
		y[i] += a
	}
	return y
}
