package config

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/optim"
)

// complete fills in the loss scale, which only f16 has.
func (t *Train) complete(d *strictyaml.Document) error {
	const key = "train.loss_scale"
	if !t.ScalesLoss() {
		if d.Filled(key) && d.Overridden("train.precision") && !d.Overridden(key) { // the file is of a run in f16
			t.LossScale = LossScale{}
		} else if d.Filled(key) {
			return fmt.Errorf("%s: %s: found a section, expected no such key: only train.precision f16 has a loss scale, and it is %s",
				d.At(key), key, t.Precision)
		}
		return nil
	}
	if !d.Given(key + ".initial") {
		t.LossScale.Initial = 1 << 16
	}
	if !d.Given(key + ".growth_every") {
		t.LossScale.GrowthEvery = 2000
	}
	return nil
}

func (t Train) validatePrecision() error {
	if err := oneOf("train.precision", t.Precision); err != nil {
		return err
	}
	if !t.ScalesLoss() {
		return nil
	}
	s := t.LossScale
	if fraction, _ := math.Frexp(s.Initial); fraction != 0.5 || s.Initial < 1 || s.Initial > optim.MaxLossScale {
		return Invalid("train.loss_scale.initial", s.Initial, "a power of two from 1 to %d", optim.MaxLossScale)
	}
	if s.GrowthEvery < 1 || s.GrowthEvery > optim.MaxGrowthEvery {
		return Invalid("train.loss_scale.growth_every", s.GrowthEvery, "an integer from 1 to %d", optim.MaxGrowthEvery)
	}
	return nil
}

// DType is the type that operands of matrix products are rounded to; f32 does not round.
func (t Train) DType() graph.DType {
	d, err := graph.ParseDType(t.Precision)
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return d
}

// ScalesLoss reports whether gradients are of a scaled loss, as in f16.
func (t Train) ScalesLoss() bool { return t.Precision == graph.F16.String() }
