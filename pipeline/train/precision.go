package train

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// LossScaleConfig is how gradients are kept from vanishing in f16: those that are stored in it are of the loss times a power of two.
type LossScaleConfig struct {
	Initial     float64 `yaml:"initial"`      // of the first batches, a power of two
	GrowthEvery int     `yaml:"growth_every"` // batches in a row without overflow, after which it doubles
}

// complete fills in what only f16 has.
func (c *LoopConfig) complete(d *strictyaml.Document) error {
	const key = "train.loss_scale"
	if c.Precision != graph.F16.String() {
		if d.Filled(key) && d.Overridden("train.precision") && !d.Overridden(key) { // as in a run folder's config, of another precision
			c.LossScale = LossScaleConfig{}
		} else if d.Filled(key) {
			return fmt.Errorf("%s: %s: found a section, expected no such key: only train.precision f16 has a loss scale, and it is %s", d.At(key), key, c.Precision)
		}
		return nil
	}
	if !d.Given(key + ".initial") {
		c.LossScale.Initial = 1 << 16
	}
	if !d.Given(key + ".growth_every") {
		c.LossScale.GrowthEvery = 2000
	}
	return nil
}

func (c LoopConfig) validatePrecision() error {
	if err := oneOf("train.precision", c.Precision, graph.F32.String(), graph.F16.String(), graph.BF16.String()); err != nil {
		return err
	}
	s := c.optimLossScale()
	if s == nil {
		return nil
	}
	if fraction, _ := math.Frexp(s.Initial); fraction != 0.5 || s.Initial < 1 || s.Initial > optim.MaxLossScale {
		return bad("train.loss_scale.initial", s.Initial, "a power of two from 1 to %d", optim.MaxLossScale)
	}
	if s.GrowthEvery < 1 || s.GrowthEvery > optim.MaxGrowthEvery {
		return bad("train.loss_scale.growth_every", s.GrowthEvery, "an integer from 1 to %d", optim.MaxGrowthEvery)
	}
	return nil
}

// dtype is what operands of matrix products are rounded to; f32: they are not.
func (c LoopConfig) dtype() graph.DType {
	d, err := graph.ParseDType(c.Precision)
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return d
}

// optimLossScale is the loss scale of f16; nil: gradients are those of the loss.
func (c LoopConfig) optimLossScale() *optim.LossScale {
	if c.Precision != graph.F16.String() {
		return nil
	}
	return &optim.LossScale{Initial: c.LossScale.Initial, GrowthEvery: c.LossScale.GrowthEvery}
}

// precisionOn says how devices compute in a precision; nothing of f32.
func precisionOn(d graph.DType, devices []device.Device) string {
	if d == graph.F32 {
		return ""
	}
	var without []string
	for _, dev := range devices {
		if name := dev.Info().Name; !dev.Limits().HasCooperative(d.String()) && !slices.Contains(without, name) {
			without = append(without, name)
		}
	}
	text := fmt.Sprintf("operands and kept activations are %v, two numbers a word; products are added up in f32", d)
	if len(without) > 0 {
		text += fmt.Sprintf(", and multiplied in f32 where there are no matrix units for %v: on %s", d, strings.Join(without, ", "))
	}
	return text
}

// inPrecision is a model as the config trains it.
func (c Config) inPrecision(m model.Model) (model.Model, error) {
	last := m.Units() - 1
	if c.Train.dtype() == graph.F16 && len(m.Reads(last, last+1)) == 0 {
		return nil, usererror.Errorf("train.precision: found f16, expected f32 or bf16: the last unit of the model, %s, has no parameter, and the loss scale is kept with those",
			m.UnitScope(last))
	}
	return model.InPrecision(m, c.Train.dtype()), nil
}
