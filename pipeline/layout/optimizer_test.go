package layout

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mixture is a model with a layer of experts.
type mixture struct{ model.Model }

func (m mixture) Parameters() []model.Parameter {
	unit := m.UnitName(1)
	return append(m.Model.Parameters(),
		model.Parameter{Name: "router", Unit: unit, Type: graph.T(graph.F32, 3, 8), Role: model.Router},
		model.Parameter{Name: "bias", Unit: unit, Type: graph.T(graph.F32, 3), Role: model.BalancingBias, BalanceRate: 1e-3,
			ProportionalBalance: true},
		model.Parameter{Name: "experts", Unit: unit, Type: graph.T(graph.F32, 3, 16, 8)})
}

func TestTheOptimizerOfAMixture(t *testing.T) {
	for _, name := range []string{"muon", "normuon", "soap", "mars", "lion"} {
		for _, router := range []string{"same", "adamw"} {
			task := planned(t, "optimizer={name: "+name+", router: "+router+"}")
			o, err := NewOptimizer(task.Config, mixture{task.Model}, nil)
			require.NoError(t, err)
			rules := map[string]string{}
			for _, a := range o.Assignment() {
				rules[a.Param] = a.Rule
				assert.Equal(t, len(a.Type.Shape) > 1, a.Decay > 0, a.Param)
			}
			want := name
			if router == "adamw" && name != "lion" {
				want = "adamw"
			}
			assert.Equal(t, map[string]string{"router": want, "bias": "proportional balance", "experts": name},
				map[string]string{"router": rules["router"], "bias": rules["bias"], "experts": rules["experts"]}, name)
		}
	}
}
