package model_test

import (
	"math"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trained runs the training graph of a model once on given weights, and returns its outputs and variables.
func trained(t *testing.T, c model.Config, change func(vars map[string]*graph.Tensor)) (out, vars map[string]*graph.Tensor) {
	t.Helper()
	o := model.StageOptions{Last: c.Units(), Batch: 2, Microbatches: 1}
	g, err := c.Training(o, false)
	require.NoError(t, err)
	vars = initial(c, g)
	if change != nil {
		change(vars)
	}
	return run(t, g, microbatch(c, o.Inputs, o.Batch, 0), vars), vars
}

// One expert of every token is the dense model, to the last bit, with the expert's gradients.
func TestOneExpertIsDense(t *testing.T) {
	dense := small()
	c := small()
	c.FFN.DFF, c.MoE = 0, model.MoE{Experts: 1, TopK: 1, DFF: dense.FFN.DFF, Score: model.SoftmaxScore, Scale: 1}
	names := []string{"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
	expert := func(layer, name string) string { return "model.layers." + layer + ".mlp.experts." + name }
	_, from := trained(t, dense, nil)
	want, gradients := trained(t, dense, nil)
	out, got := trained(t, c, func(vars map[string]*graph.Tensor) {
		for name, x := range vars {
			if from[name] != nil {
				copy(x.Data, from[name].Data)
			}
		}
		for _, layer := range []string{"0", "1"} {
			for _, name := range names {
				copy(vars[expert(layer, name)].Data, from["model.layers."+layer+".mlp."+name].Data)
			}
		}
	})
	assert.Equal(t, want["loss"].Data, out["loss"].Data)
	for _, layer := range []string{"0", "1"} {
		for _, name := range names {
			assert.Equal(t, gradients["grad/model.layers."+layer+".mlp."+name].Data, got["grad/"+expert(layer, name)].Data)
		}
		assert.Equal(t, make([]float64, 8), got["grad/model.layers."+layer+".mlp.gate.weight"].Data)
	}
	assert.Equal(t, 12.0, out["routing"].Data[0], "all rows have the one expert")
}

// The balancing bias alone decides which experts are chosen, if it is large, and does not weight their results. Experts
// without rows have no gradient.
func TestBalancingBiasChoosesExperts(t *testing.T) {
	c := features()["sigmoid"]
	biased := func(bias ...float64) func(map[string]*graph.Tensor) {
		return func(vars map[string]*graph.Tensor) {
			for _, layer := range []string{"0", "1"} {
				copy(vars["model.layers."+layer+".mlp.gate.e_score_correction_bias"].Data, bias)
			}
		}
	}
	out, vars := trained(t, c, biased(-10, 5, -10, 7))
	for row := range slices.Chunk(out["routing"].Data, 4+model.RoutingStats) {
		assert.Equal(t, []float64{0, 12, 0, 12}, row[:4])
		assert.Equal(t, []float64{-10, 7}, row[4+3:])
	}
	for _, layer := range []string{"0", "1"} {
		assert.Equal(t, []float64{0, 12, 0, 12}, vars["grad/model.layers."+layer+".mlp.gate.e_score_correction_bias"].Data)
		up := vars["grad/model.layers."+layer+".mlp.experts.up_proj.weight"].Data
		assert.Equal(t, make([]float64, 5*8), up[:5*8])
		assert.NotEqual(t, make([]float64, 5*8), up[5*8:2*5*8])
	}
	again, _ := trained(t, c, biased(-20, 9, -10, 12))
	assert.Equal(t, out["loss"].Data, again["loss"].Data, "the same choice")
}

// A token whose router's logits are NaN has a NaN loss. Its experts are valid, and no row is lost.
func TestNaNInARouter(t *testing.T) {
	for _, name := range []string{"experts", "sigmoid"} {
		c := features()[name]
		out, _ := trained(t, c, func(vars map[string]*graph.Tensor) {
			vars["model.layers.1.mlp.gate.weight"].Data[0] = math.NaN()
		})
		assert.True(t, math.IsNaN(out["loss"].Data[0]))
		rows := 0.0
		last := out["routing"].Data[len(out["routing"].Data)-c.MoE.Experts-model.RoutingStats:]
		for _, n := range last[:c.MoE.Experts] {
			rows += n
		}
		assert.Equal(t, 24.0, rows)
	}
}

// Recomputation never chooses experts again: the choice and the order of the rows are kept.
func TestTheChoiceIsKept(t *testing.T) {
	c := features()["sigmoid"]
	s, err := c.Stage(model.StageOptions{First: 2, Last: 3, Batch: 2, Microbatches: 1, Recompute: true})
	require.NoError(t, err)
	var types []string
	for _, v := range s.Stash {
		types = append(types, v.Type.String())
	}
	assert.Equal(t, []string{"u32[12,2]", "u32[24]", "u32[12,2]", "u32[5]"}, types, "ids, order, place, offsets")
	for _, g := range []*graph.Graph{s.Backward, s.BackwardNext, s.InputGrad} {
		for _, n := range g.Nodes {
			assert.NotContains(t, []string{"top_k", "group_rows"}, n.Op.Name())
		}
	}
}

// Each chunk multiplies the gradients of its side losses by the loss scale, as the last one those of the loss. The
// loads are numbers and stay as they are.
func TestSideLossesAreScaled(t *testing.T) {
	c := features()["sigmoid"]
	o := model.StageOptions{Batch: 1, Microbatches: 2}
	data := []map[string]*graph.Tensor{microbatch(c, o.Inputs, 1, 0), microbatch(c, o.Inputs, 1, 1)}
	whole, err := c.Training(model.StageOptions{Last: c.Units(), Batch: 1, Microbatches: 2}, false)
	require.NoError(t, err)
	weights := initial(c, whole)
	want, _ := train(t, parts(t, c, []int{1, 2}, o), weights, data, true)
	o.Scale = graph.Named{ID: "scale", Type: graph.T(graph.F32, 3)}
	stages := parts(t, c, []int{1, 2}, o)
	weights["scale"] = &graph.Tensor{Type: o.Scale.Type, Data: []float64{8, 0, 0}}
	for _, s := range stages {
		s.Parameters = append(s.Parameters, model.Parameter{Name: "scale"})
	}
	got, _ := train(t, stages, weights, data, true)
	for _, p := range c.Parameters() {
		for _, name := range c.Gradients(p.Name) {
			for i, x := range want[name].Data {
				if p.Role != model.BalancingBias {
					x *= 8
				}
				require.Equal(t, x, got[name].Data[i], name)
			}
		}
	}
}

// The output reports what a router did: the loads, the entropy of its distribution and its losses.
func TestRoutingStatistics(t *testing.T) {
	c := features()["experts"]
	out, _ := trained(t, c, func(vars map[string]*graph.Tensor) {
		clear(vars["model.layers.1.mlp.gate.weight"].Data) // equal scores: the first experts win
	})
	require.Equal(t, graph.Shape{1, 3 + model.RoutingStats}, out["routing"].Shape)
	row := out["routing"].Data
	assert.Equal(t, []float64{12, 12, 0}, row[:3])
	assert.InDeltaSlice(t, []float64{math.Log(3), 1, math.Pow(math.Log(3), 2), 0, 0}, row[3:], 1e-12)
	assert.Equal(t, []int{1}, c.Routing(0, c.Units()))
	assert.Nil(t, c.Routing(0, 4))
}

func TestActiveParameters(t *testing.T) {
	c := features()["experts"]
	assert.Equal(t, int64(3*5*8), c.Count()-c.ActiveCount(), "one of three experts is idle")
	assert.InDelta(t, 6*3*5*8, 6*float64(c.Count()-11*8)+6*2*8*6-c.FLOPsPerToken()+6*11*8, 1e-9)
	dense := small()
	assert.Equal(t, dense.Count(), dense.ActiveCount())
	roles := map[model.Role]int{}
	for _, p := range features()["sigmoid"].Parameters() {
		roles[p.Role]++
		if p.Role == model.BalancingBias {
			assert.Equal(t, 1e-3, p.BalanceRate)
		}
	}
	assert.Equal(t, 2, roles[model.Router])
	assert.Equal(t, 2, roles[model.BalancingBias])
}

// Rounded operands keep everything in the dtype but the router.
func TestExpertsInBF16(t *testing.T) {
	c := features()["sigmoid"]
	s, err := model.InPrecision(c, graph.BF16).Stage(model.StageOptions{First: 2, Last: 3, Batch: 2, Microbatches: 1})
	require.NoError(t, err)
	for _, v := range s.Stash {
		if v.Type.DType == graph.F32 && v.Type.Shape.Len() >= 24*5 {
			t.Errorf("%v is kept in f32", v)
		}
	}
}

// padded is a microbatch of two sequences whose last tokens are padding, and the same sequences without it, alone.
func padded(c model.Config, filled []int) (whole map[string]*graph.Tensor, alone []map[string]*graph.Tensor) {
	in := model.Inputs{Weights: true, Real: true}
	whole = microbatch(c, in, len(filled), 0)
	total := 0
	for _, n := range filled {
		total += n
	}
	for row, n := range filled {
		begin := row * c.SeqLen
		for i := range c.SeqLen {
			real := 0.0
			if i < n {
				real = 1
			}
			whole[model.RealInput].Data[begin+i] = real
			whole[model.WeightsInput].Data[begin+i] = real * float64(len(filled)*c.SeqLen) / float64(total)
		}
		one := map[string]*graph.Tensor{}
		for _, name := range []string{model.TokensInput, model.TargetsInput} {
			one[name] = &graph.Tensor{Type: graph.T(graph.U32, 1, n), Data: whole[name].Data[begin : begin+n]}
		}
		alone = append(alone, one)
	}
	return whole, alone
}

// Padding counts neither in loads nor in statistics, losses and gradients: a sequence with padding behind it has those
// that it has without.
func TestPaddingDoesNotCount(t *testing.T) {
	for name, c := range map[string]model.Config{"experts": features()["experts"], "sigmoid": features()["sigmoid"],
		"all": features()["all"]} {
		const filled = 4
		data, alone := padded(c, []int{filled})
		o := model.StageOptions{Last: c.Units(), Batch: 1, Microbatches: 1, Inputs: model.Inputs{Weights: true, Real: true}}
		g, err := c.Training(o, false)
		require.NoError(t, err)
		got := initial(c, g)
		out := run(t, g, data, got)
		short := c
		short.SeqLen = filled
		o.Inputs = model.Inputs{}
		g, err = short.Training(o, false)
		require.NoError(t, err)
		want := initial(short, g)
		wanted := run(t, g, alone[0], want)
		assert.InDelta(t, wanted["loss"].Data[0], out["loss"].Data[0], 1e-12, name)
		assert.InDeltaSlice(t, wanted["routing"].Data, out["routing"].Data, 1e-12, name)
		for _, p := range c.Parameters() {
			assert.InDeltaSlice(t, gradient(short, want, p.Name), gradient(c, got, p.Name), 1e-11, "%s: %s", name, p.Name)
		}
	}
}

// The loads of a microbatch are those of its sequences without padding, and its z-loss and entropy the means of their
// tokens.
func TestRoutingOfPaddedSequences(t *testing.T) {
	c := features()["experts"]
	filled := []int{5, 2}
	data, alone := padded(c, filled)
	g, err := c.Training(model.StageOptions{Last: c.Units(), Batch: 2, Microbatches: 1,
		Inputs: model.Inputs{Weights: true, Real: true}}, false)
	require.NoError(t, err)
	row := run(t, g, data, initial(c, g))["routing"].Data
	want := make([]float64, len(row))
	for i, n := range filled {
		short := c
		short.SeqLen = n
		g, err := short.Training(model.StageOptions{Last: c.Units(), Batch: 1, Microbatches: 1}, false)
		require.NoError(t, err)
		for j, x := range run(t, g, alone[i], initial(short, g))["routing"].Data {
			if j >= c.MoE.Experts {
				x *= float64(n) / 7
			}
			want[j] += x
		}
	}
	experts := c.MoE.Experts
	assert.Equal(t, want[:experts], row[:experts], "loads")
	assert.InDelta(t, want[experts], row[experts], 1e-12, "entropy")
	assert.InDelta(t, want[experts+2], row[experts+2], 1e-12, "z-loss")
}

// Chunks with mixtures of experts read what tells tokens from padding, wherever the model is cut, and give the same
// bits.
func TestPaddingInChunks(t *testing.T) {
	c := features()["experts"] // layer 1 is the mixture
	o := model.StageOptions{Batch: 2, Microbatches: 2, Inputs: model.Inputs{Weights: true, Real: true}}
	first, _ := padded(c, []int{5, 2})
	second, _ := padded(c, []int{1, 6})
	data := []map[string]*graph.Tensor{first, second}
	whole := parts(t, c, nil, o)
	weights := initial(c, whole[0].Forward)
	want, _ := train(t, whole, weights, data, false)
	for _, cut := range someCuts(c.Units()) {
		stages := parts(t, c, cut, o)
		got, _ := train(t, stages, weights, data, false)
		for _, p := range c.Parameters() {
			assert.Equal(t, gradient(c, want, p.Name), gradient(c, got, p.Name), "%v: %s", cut, p.Name)
		}
		bounds := slices.Concat([]int{0}, cut, []int{c.Units()})
		for i, s := range stages {
			assert.Equal(t, len(c.Routing(bounds[i], bounds[i+1])) > 0, slices.Contains(read(s.Forward, s.BackwardNext), model.RealInput))
			assert.NotContains(t, read(s.Eval), model.RealInput)
		}
	}
}
