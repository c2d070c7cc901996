package measure

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func small(tied bool) model.Config {
	c := model.Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF, c.SeqLen, c.TieEmbeddings = 96, 64, 4, 4, 2, 160, 32, tied
	return c
}

func newTarget(t *testing.T, c model.Config, name string) Target {
	t.Helper()
	var params []optim.Param
	for _, p := range c.Parameters() {
		matrix := len(p.Type.Shape) == 2
		all := c.Gradients(p.Name)
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: all[len(all)-1],
			Contributions: all[:len(all)-1], Matrix: matrix && strings.HasPrefix(p.Unit, "layers."), Decay: matrix})
	}
	a, err := optim.NewAlgorithm(name)
	require.NoError(t, err)
	o, err := optim.New(optim.Config{Algorithm: a, AdamW: *optim.DefaultRest(), WeightDecay: 0.1, Clip: 1,
		Losses: []string{model.LossVariable}, Schedule: optim.Schedule{Name: "constant", Steps: 10}}, params)
	require.NoError(t, err)
	return Target{Model: c, Batch: 2, Optimizer: o}
}

// hardware is the null device, pretending to compute.
type hardware struct {
	*null.Device
	info device.Info
	runs int
	fail error
}

func (h *hardware) Info() device.Info { return h.info }

func (h *hardware) Run(l device.Loaded) error {
	h.runs++
	if h.fail != nil {
		return h.fail
	}
	return h.Device.Run(l)
}

func pretend(name, driver string) *hardware {
	return &hardware{Device: null.New(null.Options{}), info: device.Info{Name: name, Adapter: "pretended", Driver: driver,
		Kind: device.Discrete}}
}

// stageMemory is what a stage of 1f1b takes when its programs are planned together, as a line of the engine plans them.
func stageMemory(t *testing.T, g Target, p partition.Chunk, slots int, recompute bool) (variables, total int64) {
	t.Helper()
	c := g.Model
	s, err := c.Stage(model.StageOptions{First: p.First, Last: p.Last, Batch: g.Batch, Microbatches: 4, Recompute: recompute,
		Inputs: g.Inputs})
	require.NoError(t, err)
	graphs := map[string]*graph.Graph{"F": s.Forward, "B": s.Backward, "B+": s.BackwardNext}
	var own []string
	pools := map[string]exec.Pool{}
	for _, q := range s.Parameters {
		gradients := c.Gradients(q.Name)
		gradient := gradients[len(gradients)-1]
		if p.First > 0 && len(gradients) > 1 {
			gradient = gradients[0] // a copy
		} else {
			own = append(own, q.Name)
		}
		pools[q.Name] = exec.Pool{Name: q.Name, Class: "weights", Size: 2}
		pools[gradient] = exec.Pool{Name: q.Name, Class: "gradients", Size: 2}
	}
	part := g.Optimizer.Shard(own, p.Last == c.Units())
	graphs["norms"], err = part.NormSquares()
	require.NoError(t, err)
	graphs["update"], err = part.Update(0)
	require.NoError(t, err)
	for _, q := range graphs {
		for _, v := range q.Sources("variable") {
			id := v.Node.Op.(graph.Source).Label()
			given := slices.ContainsFunc(c.Variables(g.Inputs, g.Batch), func(v graph.Named) bool { return v.ID == id })
			if given || id == model.ActIn || strings.HasPrefix(id, "stash/") {
				pools[id] = exec.Pool{Name: id, Class: "slot", Size: slots}
			}
		}
	}
	plan, err := exec.NewPlan(null.New(null.Options{}), graphs, exec.Options{Pools: pools})
	require.NoError(t, err)
	return plan.Memory().Variables, plan.Memory().Total
}

// The memory of a stage as predicted from single units is that of its programs planned together: variables but for
// small ones (gradient norms, the loss), the rest within 2 %, or within one activation of small chunks.
func TestMemoryIsThatOfWholeStages(t *testing.T) {
	experts := small(false)
	experts.MoE = model.MoE{Experts: 8, TopK: 2, DFF: 64, DenseFirst: 1, Score: model.SigmoidScore, Normalize: true, Scale: 1,
		Balance: model.Balance{Bias: 1e-3, Z: 1e-3}}
	g := newTarget(t, experts, "adamw")
	g.Model = model.InPrecision(g.Model, graph.BF16)
	checkStages(t, g, "experts", []partition.Recompute{partition.Never, partition.Always})
	for dtype, recomputes := range map[graph.DType][]partition.Recompute{
		graph.F32: {partition.Never, partition.Always}, graph.BF16: {partition.Never, partition.Always},
	} {
		for tied, optimizer := range map[bool]string{false: "adamw", true: "muon"} {
			g := newTarget(t, small(tied), optimizer)
			g.Model, g.Inputs = model.InPrecision(g.Model, dtype), model.Inputs{Segments: tied, Weights: tied}
			checkStages(t, g, fmt.Sprintf("%v, tied %v", dtype, tied), recomputes)
		}
	}
}

// checkStages compares both for pipelines of one to three stages.
func checkStages(t *testing.T, g Target, name string, recomputes []partition.Recompute) {
	t.Helper()
	costs, _, err := g.Problem(context.Background(), []device.Device{null.New(null.Options{})}, Options{})
	require.NoError(t, err)
	for _, cut := range [][]int{{}, {5}, {2, 4}} {
		stages := len(cut) + 1
		s, err := schedule.Generate("1f1b", schedule.Options{Stages: stages, Microbatches: 4, Batches: schedule.PatternBatches})
		require.NoError(t, err)
		for _, recompute := range recomputes {
			p := partition.Problem{Units: costs.Units, Given: costs.Given, Schedule: s, Cut: cut, Recompute: recompute}
			for i := range stages {
				p.Devices = append(p.Devices, partition.Device{Name: fmt.Sprint("null:", i), Times: costs.Devices[0].Times})
			}
			plan, err := partition.Choose(p)
			require.NoError(t, err)
			for s, stage := range plan.Stages {
				variables, total := stageMemory(t, g, stage.Chunks[0], stages-s, recompute == partition.Always)
				m := stage.Memory
				which := fmt.Sprintf("%s, cut %v, stage %d, recompute %s", name, cut, s, recompute)
				assert.InDelta(t, variables, m.Total()-m.Working, 2048, "%s: variables of %+v", which, m)
				activation := p.Units[0].Out
				assert.InDelta(t, total, m.Total(), max(0.02*float64(total), float64(activation)), "%s: total of %+v", which, m)
			}
		}
	}
}

func TestUnits(t *testing.T) {
	c := small(true)
	costs, err := newTarget(t, c, "adamw").On(context.Background(), null.New(null.Options{}), Options{})
	require.NoError(t, err)
	require.Len(t, costs.Units, 10)
	require.Len(t, costs.Times, 10)
	var parameters int64
	for _, u := range costs.Units {
		parameters += u.Parameters
	}
	assert.Equal(t, 4*c.Count(), parameters)
	embed, attention, feedForward, head := costs.Units[0], costs.Units[5], costs.Units[6], costs.Units[9]
	for u, name := range map[*partition.Unit][2]string{&embed: {"embed", "embed"}, &attention: {"layers.2.self_attn", "layers.2"},
		&feedForward: {"layers.2.mlp", "layers.2"}, &head: {"head", "head"}} {
		assert.Equal(t, name, [2]string{u.Name, u.Layer})
	}
	assert.EqualValues(t, 4*96*64, embed.Parameters)
	assert.EqualValues(t, 4*96*64, head.Shared)
	assert.EqualValues(t, 4*64, head.Parameters)
	assert.EqualValues(t, 4*2*32*64, embed.Out)
	assert.Zero(t, head.Out)
	for _, u := range []partition.Unit{attention, feedForward} {
		assert.EqualValues(t, embed.Out, u.Out)
		assert.EqualValues(t, 2*u.Parameters, u.State-4, "two moments, and a flag")
		assert.Positive(t, u.Kept)
		assert.Positive(t, u.KeptW)
	}
	for _, x := range costs.Times {
		assert.Positive(t, x.Forward)
		assert.Positive(t, x.Backward)
		assert.Positive(t, x.Update)
	}
}

func TestMoreWorkIsGuessedToTakeLonger(t *testing.T) {
	long := small(false)
	long.FFN.DFF *= 64
	slow, err := newTarget(t, long, "muon").On(context.Background(), null.New(null.Options{}), Options{})
	require.NoError(t, err)
	fast, err := newTarget(t, small(false), "muon").On(context.Background(), null.New(null.Options{}), Options{})
	require.NoError(t, err)
	assert.Greater(t, slow.Times[2].Forward, fast.Times[2].Forward)
	assert.Greater(t, slow.Times[2].Backward, fast.Times[2].Backward)
	assert.Equal(t, fast.Times[:2], slow.Times[:2], "the embedding and the attention are the same")
}

func TestAlikeDevicesAreMeasuredOnce(t *testing.T) {
	g := newTarget(t, small(false), "muon")
	a, b, other := pretend("webgpu:0", "1"), pretend("webgpu:1", "1"), pretend("webgpu:2", "2")
	p, modelled, err := g.Problem(context.Background(), []device.Device{a, b, other}, Options{})
	require.NoError(t, err)
	assert.False(t, modelled)
	assert.Positive(t, a.runs)
	assert.Zero(t, b.runs)
	assert.Positive(t, other.runs)
	assert.Equal(t, p.Devices[0].Times, p.Devices[1].Times)
	assert.Equal(t, "webgpu:1", p.Devices[1].Name)
	left, _ := a.Allocated()
	assert.Zero(t, left, "measuring leaves nothing behind")
}

func TestModelledRunsNothing(t *testing.T) {
	dev := pretend("webgpu:0", "1")
	costs, err := newTarget(t, small(false), "muon").On(context.Background(), dev, Options{Modelled: true})
	require.NoError(t, err)
	assert.True(t, costs.Modelled)
	assert.Zero(t, dev.runs)
	assert.Zero(t, dev.Counts().Programs)
	assert.Zero(t, dev.Counts().Writes)
}

func TestCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "costs.json")
	measure := func(dev *hardware, g Target, fresh bool) (Costs, int) {
		cache, err := OpenCache(path)
		require.NoError(t, err)
		if fresh {
			cache.Renew()
		}
		before := dev.runs
		c, err := g.On(context.Background(), dev, Options{Cache: cache})
		require.NoError(t, err)
		require.NoError(t, cache.Save())
		return c, dev.runs - before
	}
	dev, g := pretend("webgpu:0", "1"), newTarget(t, small(false), "adamw")
	first, all := measure(dev, g, false)
	assert.Positive(t, all)
	assert.False(t, first.Cached)
	again, runs := measure(dev, g, false)
	assert.Zero(t, runs)
	assert.True(t, again.Cached)
	assert.Equal(t, first.Times, again.Times)
	assert.Equal(t, first.Link, again.Link)
	_, runs = measure(dev, g, true)
	assert.Positive(t, runs, "asked for anew")
	wider := small(false)
	wider.FFN.DFF = 192
	_, runs = measure(dev, newTarget(t, small(false), "sgd"), false)
	assert.Less(t, runs, all, "another optimizer: forward and backward are known")
	assert.Positive(t, runs)
	for name, other := range map[string]Target{"model": newTarget(t, wider, "adamw"),
		"microbatch": {Model: g.Model, Batch: 3, Optimizer: g.Optimizer}} {
		_, runs = measure(dev, other, false)
		assert.Positive(t, runs, name)
	}
	_, runs = measure(pretend("webgpu:0", "2"), g, false)
	assert.Positive(t, runs, "another driver")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o666))
	_, runs = measure(dev, g, false)
	assert.Positive(t, runs, "damaged")
	_, err := OpenCache(t.TempDir())
	assert.ErrorContains(t, err, "measured costs")
}

func TestFailuresAndInterruptions(t *testing.T) {
	g, dev := newTarget(t, small(false), "muon"), pretend("webgpu:0", "1")
	dev.fail = device.ErrLost
	_, _, err := g.Problem(context.Background(), []device.Device{dev}, Options{})
	assert.ErrorIs(t, err, device.ErrLost)
	assert.EqualError(t, err, "webgpu:0: embed: program F: device lost")
	dev.fail = nil
	ctx, cancel := context.WithCancel(context.Background())
	_, err = g.On(ctx, dev, Options{Progress: func(_, what string) {
		if what == "program B of layers.0.self_attn" {
			cancel()
		}
	}})
	assert.ErrorIs(t, err, context.Canceled)
	left, _ := dev.Allocated()
	assert.Zero(t, left)
}
