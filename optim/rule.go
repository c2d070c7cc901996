package optim

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// Rule is the mathematics of an optimizer: from gradients to updates. What is done with an update is not its business.
type Rule interface {
	Name() string
	// State lists the kinds of state that it keeps of a parameter, each with its type; all begin as zero.
	State(p Param) []graph.Named
	// Numbers are what changes with the step (from 0), given its learning rate; their count is fixed.
	Numbers(step int, rate float64) []float64
	// Update adds the nodes that compute the updates, in the order of ts, which are parameters of one layer. Numbers are
	// f32 [1] each.
	Update(ts []Tensor, numbers []*graph.Value) []Update
}

// Varied is a Rule whose update is another program at some steps: one that renews a basis now and then, say. Its Update is
// variant 0.
type Varied interface {
	Rule
	Variants() int
	Variant(step int) int // of a step, from 0; see Beginning
	UpdateVariant(variant int, ts []Tensor, numbers []*graph.Value) []Update
}

// Beginning is a Varied whose first update that is applied, be its step the first or a later one, makes its state and no update;
// weights do not decay there either.
type Beginning interface {
	Begin() int // the variant that does
}

// WithMomentum is a Rule of which part of the next update is known beforehand: the update that its momentum alone would
// make, of the step's learning rate. It is given what Update was given and has returned. For a rule that is not, the
// update itself is taken.
type WithMomentum interface {
	Momentum(ts []Tensor, us []Update, numbers []*graph.Value) []*graph.Value
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
	// Momentum is for corrections, and not the rule's to set: the update that momentum alone would make next (see
	// WithMomentum). Its nodes are made when it is called.
	Momentum func() *graph.Value
}

// kinds is state of the parameter's own type.
func kinds(p Param, kinds ...string) (s []graph.Named) {
	for _, k := range kinds {
		s = append(s, graph.Named{ID: k, Type: p.Type})
	}
	return s
}

// registered is how a name becomes a Rule, and which parameters are its own: all when takes is nil. What it leaves goes to
// AdamW with the numbers of rest, or of Config.AdamW when that is nil.
type registered struct {
	make  func(Config) (Rule, error)
	takes func(Config, Param) bool
	rest  func(Config) AdamWConfig
}

func hiddenMatrix(_ Config, p Param) bool { return p.Matrix }

// rules holds what can be named by optimizer.name; the files of the rules add to it while the package initialises.
var rules = map[string]registered{}

// names lists the keys of a registry.
func names[T any](m map[string]T) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }
