package layout

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// planned is a config of a model that is large enough for its chunks to outweigh the fixed needs of a rank.
func planned(t *testing.T, overrides ...string) Task {
	t.Helper()
	c, err := config.Parse("planned", nil, append([]string{
		"model={vocab_size: 512, d_model: 64, n_layers: 4, n_heads: 4, d_ff: 160, seq_len: 32}", "data.train=[a.txt]", "run.dir=run",
		"train={batch_size: 16, microbatches: 8}", "pipeline.stages=2"}, overrides...))
	require.NoError(t, err)
	return Task{Config: c, Model: c.Model.Config}
}

// nulls are n null devices with a memory budget each.
func nulls(n int, budget int64) (devices []device.Device) {
	for i := range n {
		devices = append(devices, null.New(null.Options{Name: fmt.Sprint("null:", i), MemoryBudget: budget}))
	}
	return devices
}

// runs is a device that counts runs and pretends to compute.
type runs struct {
	*null.Device
	n int
}

func (r *runs) Info() device.Info {
	return device.Info{Name: "webgpu:0", Adapter: "pretended", Kind: device.Discrete}
}

func (r *runs) Run(l device.Loaded) error { r.n++; return r.Device.Run(l) }

// A cut that the config sets is measured too, since its prediction is compared with the run.
func TestPartitionMeasuresOnce(t *testing.T) {
	cache := measure.NewCache()
	for i, cut := range []string{"pipeline.cut=[]", "pipeline.cut=[3]"} {
		dev := &runs{Device: null.New(null.Options{})}
		c := planned(t, cut)
		plan, err := c.Partition(t.Context(), []device.Device{dev, dev}, measure.Options{Cache: cache})
		require.NoError(t, err)
		assert.Len(t, plan.Cut, 1)
		assert.Equal(t, i == 0, dev.n > 0, cut)
		assert.Equal(t, []int{0, 1}, plan.Devices)
	}
}

func TestPartitionThatDoesNotFitIsAMistake(t *testing.T) {
	c := planned(t)
	free, err := c.Partition(t.Context(), nulls(2, 0), measure.Options{})
	require.NoError(t, err)
	tight, err := c.Partition(t.Context(), nulls(2, free.Largest()-1), measure.Options{})
	require.NoError(t, err)
	assert.Less(t, tight.Largest(), free.Largest())
	_, err = c.Partition(t.Context(), nulls(2, free.Largest()/10), measure.Options{})
	assert.IsType(t, new(usererror.Error), err)
	var infeasible *partition.InfeasibleError
	require.ErrorAs(t, err, &infeasible)
	assert.ErrorContains(t, err, units.Bytes(free.Largest()/10)+" available")
}

func TestCompare(t *testing.T) {
	opened := map[string]int{}
	open := func(name string) (device.Device, error) {
		opened[name]++
		return null.New(null.Options{Name: name}), nil
	}
	p, err := planned(t, "pipeline.devices=[null:0, null:1]", "pipeline.error_feedback=true", "pipeline.schedule=2bw",
		"pipeline.memory=1GiB").
		Compare(t.Context(), open, measure.Options{})
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"null:0": 1, "null:1": 1}, opened)
	assert.True(t, p.Modelled)
	var names []string
	for _, c := range p.Schedules {
		names = append(names, c.Schedule)
		require.NotNil(t, c.Plan, "%s: %s", c.Schedule, c.Problem)
		assert.Positive(t, c.Plan.TokensPerSec)
		assert.EqualValues(t, 1<<30, c.Plan.Stages[0].Available)
	}
	assert.Equal(t, schedule.TrainableNames(), names)
	optimizer := func(name string) int64 { return p.Schedules[slices.Index(names, name)].Plan.Stages[0].Memory.Optimizer }
	assert.Greater(t, optimizer(schedule.TwoBW), optimizer(schedule.OneF1B), "the correction has a buffer")
	assert.Equal(t, 16*32, p.Tokens)
	assert.NotEmpty(t, p.Recommended)

	p, err = planned(t, "train.microbatches=1", "pipeline.stages=1", "pipeline.memory=1KiB").Compare(t.Context(), open, measure.Options{})
	require.NoError(t, err)
	assert.Equal(t, -1, p.RecommendedIndex)
	assert.Contains(t, p.Schedules[0].Problem, "stage 0 (embed to head) does not fit")
	_, err = planned(t).Compare(t.Context(), func(string) (device.Device, error) { return nil, fmt.Errorf("none here") }, measure.Options{})
	assert.EqualError(t, err, "pipeline.devices: none here")
	assert.IsType(t, new(usererror.Error), err)
}

// The worst of all replicas counts. Equal replicas change nothing.
func TestAsOneReplica(t *testing.T) {
	device := func(name string, memory int64, forward float64, l partition.Link) partition.Device {
		return partition.Device{Name: name, Memory: memory, Times: []partition.Time{{Forward: forward, Backward: 2 / forward}}, Link: l}
	}
	fast, slow := partition.Link{Latency: 1, Bandwidth: 8}, partition.Link{Latency: 2, Bandwidth: 4}
	one := []partition.Device{device("a", 100, 1, fast), device("b", 0, 2, fast), device("a", 100, 1, fast)}
	assert.Equal(t, one, asOneReplica(one, 3))
	shared := device("a", 50, 1, fast)
	shared.Ranks = 4
	assert.Equal(t, []partition.Device{shared, shared},
		asOneReplica([]partition.Device{device("a", 100, 1, fast), device("a", 100, 1, fast), device("a", 100, 1, fast),
			device("a", 100, 1, fast)}, 2))
	assert.Equal(t, []partition.Device{
		{Name: "a and c", Memory: 50, Times: []partition.Time{{Forward: 4, Backward: 2}}, Link: slow, Ranks: 2},
		{Name: "b and a", Memory: 50, Times: []partition.Time{{Forward: 2, Backward: 2}}, Link: fast, Ranks: 2}},
		asOneReplica([]partition.Device{device("a", 100, 1, fast), device("b", 0, 2, fast), device("c", 70, 4, slow),
			device("a", 100, 1, fast)}, 2))
}

// In 16 bits, a model whose layers outweigh its logits needs less than 0.58 of the activations.
func TestPlannedActivationsInPrecision(t *testing.T) {
	activations := func(precision string) (sum int64) {
		c := planned(t, "train.precision="+precision,
			"model={vocab_size: 512, d_model: 256, n_layers: 8, n_heads: 4, d_ff: 688, seq_len: 64}")
		var err error
		c.Model, err = InPrecision(c.Config, c.Model)
		require.NoError(t, err)
		p, err := c.Partition(t.Context(), nulls(2, 0), measure.Options{Modelled: true})
		require.NoError(t, err)
		for _, s := range p.Stages {
			sum += s.Memory.Activations
		}
		return sum
	}
	f32 := activations("f32")
	for _, precision := range []string{"f16", "bf16"} {
		assert.Less(t, activations(precision), f32*58/100, precision)
	}
}

// The description names the devices without matrix units for the precision.
func TestDescribePrecision(t *testing.T) {
	limits := target.DefaultLimits()
	limits.Cooperative = []target.CooperativeMatrix{{M: 16, N: 16, K: 16, Input: "f16", Result: "f32"}}
	devices := append(nulls(2, 0), null.New(null.Options{Name: "able", Limits: &limits}))
	assert.Empty(t, DescribePrecision(graph.F32, devices))
	assert.Contains(t, DescribePrecision(graph.F16, devices), "matrix units for f16: on null:0, null:1")
	assert.Contains(t, DescribePrecision(graph.BF16, devices), "matrix units for bf16: on null:0, null:1, able")
	assert.NotContains(t, DescribePrecision(graph.F16, devices[2:]), "units")
}

// bare is a model whose last unit has no parameters.
type bare struct{ model.Config }

func (bare) Reads(int, int) []model.Parameter { return nil }

func TestF16WantsAParameterAtTheLoss(t *testing.T) {
	c := planned(t, "train.precision=f16").Config
	_, err := InPrecision(c, bare{c.Model.Config})
	assert.ErrorContains(t, err, "train.precision: found f16, expected f32 or bf16: the last unit of the model, head, has no parameter")
}
