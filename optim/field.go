package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Field is one value of a config: a hyperparameter. Readers and descriptions of configs (files, flags, help, schemas)
// use the fields of the tables. So they know every hyperparameter without a list of their own.
type Field struct {
	Name  string // such as "weight_decay"
	About string // its meaning, as half a sentence
	// Value points into the config: *bool, *int, *float64, *string, *[2]float64 or *[3]float64.
	Value   any
	Range   Range    // of numbers, and of each number of an array
	Choices []string // of texts
	Shapes  bool     // the value may decide which state the optimizer has, or the state's type; other fields are numbers of a step
}

// Range bounds numbers from both sides.
type Range struct {
	From, To float64
	Below    bool // To itself is out of range
}

// The ranges of hyperparameters. The smallest epsilon is far above the least number of f32, in which devices compute.
var (
	rates      = Range{To: 1e6, Below: true}
	magnitudes = Range{To: 1e3, Below: true}
	fractions  = Range{To: 1, Below: true}
	epsilons   = Range{From: 1e-30, To: 1}
	counts     = Range{From: 1, To: math.MaxInt32}
)

func (r Range) contains(x float64) bool { return x >= r.From && (x < r.To || x == r.To && !r.Below) }

func (r Range) String() string {
	switch {
	case r.Below:
		return fmt.Sprintf("of at least %g and below %g", r.From, r.To)
	case r.To == math.MaxInt32:
		return fmt.Sprintf("of at least %g", r.From)
	}
	return fmt.Sprintf("from %g to %g", r.From, r.To)
}

// FieldError is the error of a config's invalid value. Its Field is Field.Name.
type FieldError = fielderror.Error

// Expected is what the field accepts, as text.
func (f Field) Expected() string {
	switch f.Value.(type) {
	case *bool:
		return "true or false"
	case *string:
		return "one of " + strings.Join(f.Choices, ", ")
	case *int:
		return "an integer " + f.Range.String()
	}
	return "a number " + f.Range.String()
}

// Check returns a *FieldError if the value is not accepted.
func (f Field) Check() error {
	refuse := func(found any) error { return fielderror.New(f.Name, found, "%s", f.Expected()) }
	switch v := f.Value.(type) {
	case *bool:
	case *string:
		if !slices.Contains(f.Choices, *v) {
			return refuse(*v)
		}
	case *int:
		if !f.Range.contains(float64(*v)) {
			return refuse(*v)
		}
	default:
		for _, x := range f.numbers() {
			if !f.Range.contains(x) {
				return refuse(x)
			}
		}
	}
	return nil
}

// numbers is the value of a field of one or more numbers.
func (f Field) numbers() []float64 {
	switch v := f.Value.(type) {
	case *float64:
		return []float64{*v}
	case *[2]float64:
		return v[:]
	case *[3]float64:
		return v[:]
	}
	panic(fmt.Sprintf("optim: field %s has the type %T", f.Name, f.Value))
}

// check returns the first field's error.
func check(fields []Field) error {
	for _, f := range fields {
		if err := f.Check(); err != nil {
			return err
		}
	}
	return nil
}

// WeightDecay describes the weight decay, a hyperparameter of every optimizer.
func WeightDecay(value *float64) Field {
	return Field{Name: "weight_decay", About: "decoupled weight decay of matrices", Value: value, Range: magnitudes}
}

// choice is a named value of a field of text.
type choice[T any] struct {
	name  string
	value T
}

func choiceNames[T any](cs []choice[T]) (names []string) {
	for _, c := range cs {
		names = append(names, c.name)
	}
	return names
}

// chosen is the value of a name that Check has accepted.
func chosen[T any](cs []choice[T], name string) T {
	i := slices.IndexFunc(cs, func(c choice[T]) bool { return c.name == name })
	return cs[i].value
}
