package partition

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// halved is layers in two units each, which take the times of a forward.
func halved(layers int, attention, feedForward float64) (us []Unit, times []Time) {
	time := func(f float64) Time { return Time{Forward: f, Backward: 2 * f, InputGrad: f, WeightGrad: f} }
	us, times = []Unit{{Name: "embed"}}, []Time{{}}
	for i := range layers {
		layer := fmt.Sprint("layers.", i)
		us = append(us, Unit{Name: layer + ".self_attn", Layer: layer}, Unit{Name: layer + ".mlp", Layer: layer})
		times = append(times, time(attention), time(feedForward))
	}
	return append(us, Unit{Name: "head"}), append(times, Time{})
}

// Stages have halves of layers where that balances them, and their names say so.
func TestHalvesOfLayers(t *testing.T) {
	choose := func(us []Unit, times []Time, stages int) Plan {
		p := Problem{Units: us, Schedule: generate(t, "2bw", stages, 1, stages), Tokens: 1}
		for s := range stages {
			p.Devices = append(p.Devices, Device{Name: fmt.Sprint("gpu:", s), Times: times})
		}
		plan, err := Choose(p)
		require.NoError(t, err)
		return plan
	}
	for _, c := range [][2]int{{10, 4}, {24, 16}} {
		layers, stages := c[0], c[1]
		us, times := halved(layers, 1, 1)
		for s, stage := range choose(us, times, stages).Stages {
			assert.InDelta(t, 6*float64(layers)/float64(stages), stage.Seconds, 1e-9, "stage %d", s)
		}
	}
	us, times := halved(3, 1, 1)
	plan := choose(us, times, 2)
	assert.Equal(t, []string{"layers.1.mlp"}, plan.CutNames)
	assert.Equal(t, []string{"embed to layers.1.self_attn", "layers.1.mlp to head"}, []string{plan.Stages[0].Units, plan.Stages[1].Units})
	us, times = halved(4, 1, 3)
	plan = choose(us, times, 2)
	assert.Equal(t, []string{"layers.2"}, plan.CutNames, "even between layers")
}
