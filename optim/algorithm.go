package optim

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// Algorithm is the config of one optimizer: *AdamW, *Muon and so on, a row of the table Optimizers each.
type Algorithm interface {
	// Fields lists all hyperparameters.
	Fields() []Field
	// LearningRate is the rate before the schedule's factor.
	LearningRate() float64
	takes(p Param) bool // whether p is updated by this optimizer; AdamW updates the others
	rule() Rule         // of a config whose fields are in range
}

// SetLearningRate sets the rate before the schedule's factor.
func SetLearningRate(a Algorithm, rate float64) {
	fields := a.Fields()
	*fields[slices.IndexFunc(fields, func(f Field) bool { return f.Name == lrField })].Value.(*float64) = rate
}

// lrField names a field that every algorithm has.
const lrField = "lr"

// Dependent is an Algorithm some of whose defaults depend on other hyperparameters.
type Dependent interface {
	// Complete fills in the fields that are not given.
	Complete(given func(field string) bool)
}

// DefaultWeightDecay is the default weight decay of all optimizers.
const DefaultWeightDecay = 0.1

// withAdamW is an Algorithm among whose Fields are hyperparameters of AdamW, for the parameters that it does not take.
type withAdamW interface {
	adamW() *AdamW
}

// TakesAll reports whether an optimizer updates parameters of all shapes.
func TakesAll(a Algorithm) bool { return a.takes(Param{Type: graph.T(graph.F32, 1)}) }

// ReadsAdamW reports whether Config.AdamW has the hyperparameters for the parameters that an optimizer does not take.
func ReadsAdamW(a Algorithm) bool {
	_, own := a.(withAdamW)
	return !own && !TakesAll(a)
}

func learningRateField(rate *float64) Field {
	return Field{Name: lrField, About: "learning rate, before the schedule's factor", Value: rate, Range: rates}
}

func epsilonField(epsilon *float64) Field {
	return Field{Name: "eps", About: "added to the root of the second moment", Value: epsilon, Range: epsilons}
}
