package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// lossScale is the loss scale of f16; nil: gradients are of the loss itself.
func lossScale(t config.Train) *optim.LossScale {
	if !t.ScalesLoss() {
		return nil
	}
	return &optim.LossScale{Initial: t.LossScale.Initial, GrowthEvery: t.LossScale.GrowthEvery}
}

// DescribePrecision describes how devices compute in a precision. It is empty for f32.
func DescribePrecision(d graph.DType, devices []device.Device) string {
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

// InPrecision returns the model in the config's precision.
func InPrecision(c config.Config, m model.Model) (model.Model, error) {
	last := m.Units() - 1
	if c.Train.DType() == graph.F16 && len(m.Reads(last, last+1)) == 0 {
		return nil, usererror.Errorf("train.precision: found f16, expected f32 or bf16: the last unit of the model, %s, has no parameter, and the loss scale is kept with those",
			m.UnitName(last))
	}
	return model.InPrecision(m, c.Train.DType()), nil
}
