package model_test

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// features are small models that together have every feature of Config. Their layers differ.
func features() map[string]model.Config {
	head := small()
	head.Attention.Window, head.Attention.Pattern = 2, []string{model.LocalLayer, model.FullLayer}
	head.Attention.HeadDim, head.Norm.QK = 6, model.QKHead
	post := small()
	post.Rope.Scaling = model.Scaling{Kind: model.Llama3Scaling, Factor: 8, Low: 0.5, High: 1.5, Original: 12}
	post.Norm.Place, post.Norm.QK, post.TieEmbeddings = model.NormPost, model.QKFull, false
	post.Attention.Rope, post.Attention.Window = []int{1, 0}, 4
	yarn := small()
	yarn.Rope.Scaling = model.Scaling{Kind: model.YaRNScaling, Factor: 3, Low: 0.1, High: 1.5, Original: 12, Attention: 1.25,
		Layers: model.FullLayers}
	yarn.Attention.Window, yarn.Attention.Pattern = 2, []string{model.FullLayer, model.LocalLayer}
	both := small()
	both.Norm.Place, both.Norm.UnitOffset, both.FFN.Kind, both.Logits.Softcap = model.NormBoth, true, model.GeGLU, 2
	bare := small()
	bare.Norm.Weight, bare.Norm.Embedding, bare.Norm.QK, bare.FFN.Kind = false, true, model.QKHead, model.ReLU2
	bare.Logits.Softcap, bare.TieEmbeddings = 3, false
	experts := small()
	experts.MoE = model.MoE{Experts: 3, TopK: 2, DFF: 5, Shared: 2, DenseFirst: 1, Score: model.SoftmaxScore, Scale: 1,
		Balance: model.Balance{Aux: 0.5, Z: 0.25}}
	sigmoid := small()
	sigmoid.FFN.DFF, sigmoid.MoE = 0, model.MoE{Experts: 4, TopK: 2, DFF: 5, Score: model.SigmoidScore, Normalize: true, Scale: 2.5,
		Balance: model.Balance{Bias: 1e-3, Z: 0.125, Aux: 0.5}}
	one := small()
	one.FFN = model.FFN{Kind: model.ReLU2}
	one.MoE = model.MoE{Experts: 3, TopK: 3, DFF: 4, Score: model.SoftmaxScore, Scale: 1, Normalize: true}
	return map[string]model.Config{"head": head, "post": post, "both": both, "yarn": yarn, "bare": bare, "experts": experts,
		"sigmoid": sigmoid, "all": one}
}

// Each feature is kept by a checkpoint's config.json, decodes as it trains, and has the gradients of its loss for all
// parameters.
func TestFeatures(t *testing.T) {
	classes := map[string]string{"head": "Qwen3ForCausalLM", "bare": "NanoChatForCausalLM", "sigmoid": "Glm4MoeForCausalLM"}
	for name, c := range features() {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.Validate())
			back, err := model.FromJSON(c.JSON())
			require.NoError(t, err)
			assert.Equal(t, c, back)
			if class, ok := classes[name]; ok {
				assert.Contains(t, string(c.HuggingFace()), class)
			} else {
				assert.Error(t, c.Exportable())
				assert.Nil(t, c.HuggingFace())
			}
			decodeAgrees(t, c)
			slotsAgree(t, c)
			gradientsAreThoseOfTheLoss(t, c, model.StageOptions{Batch: 1, Microbatches: 1})
			everyParameterIsTrained(t, c)
		})
	}
}

// Every cut of a model with any feature equals the whole model, to the last bit.
func TestStagesHaveFeatures(t *testing.T) {
	for _, c := range features() {
		stagesAreTheModel(t, c, model.StageOptions{Batch: 1, Microbatches: 2}, someCuts(c.Units()))
	}
}

// shrunk is a preset with all of its features, small enough for tests.
func shrunk(t *testing.T, name string) model.Config {
	t.Helper()
	c, err := model.Preset(name)
	require.NoError(t, err)
	kept := small()
	c.VocabSize, c.DModel, c.NKVHeads, c.SeqLen = kept.VocabSize, kept.DModel, min(2, c.NHeads/c.NKVHeads), kept.SeqLen
	c.NHeads, c.NLayers = 2, max(2, len(c.Attention.Pattern), len(c.Attention.Rope))
	c.FFN.DFF, c.Attention.HeadDim, c.Attention.Window = min(c.FFN.DFF, 12), min(c.Attention.HeadDim, 6), min(c.Attention.Window, 3)
	if m := &c.MoE; m.Experts > 0 {
		m.Experts, m.TopK, m.DFF = 4, 2, 5
	}
	c.Rope.Scaling.Original = min(c.Rope.Scaling.Original, 12)
	require.NoError(t, c.Validate())
	return c
}

// Presets decode as they train, and every unit can be a stage of its own.
func TestPresetsShrunk(t *testing.T) {
	done := map[string]bool{}
	for _, name := range model.Presets() {
		c := shrunk(t, name)
		if text := string(c.JSON()); !done[text] {
			done[text] = true
			decodeAgrees(t, c)
			slotsAgree(t, c)
			stagesAreTheModel(t, c, model.StageOptions{Batch: 1, Microbatches: 2}, [][]int{someCuts(c.Units())[c.Units()]})
		}
	}
	assert.Greater(t, len(done), 10)
}

// Tensors have the names and sizes of published models.
func TestParametersOfFeatures(t *testing.T) {
	shapes := func(c model.Config) map[string]graph.Shape {
		all := map[string]graph.Shape{}
		for _, p := range c.Reads(1, 3) {
			all[p.Name[len("model.layers.0."):len(p.Name)-len(".weight")]] = p.Type.Shape
		}
		return all
	}
	fs := features()
	assert.Equal(t, map[string]graph.Shape{"input_layernorm": {8}, "self_attn.q_proj": {12, 8}, "self_attn.k_proj": {6, 8},
		"self_attn.v_proj": {6, 8},
		"self_attn.q_norm": {6}, "self_attn.k_norm": {6}, "self_attn.o_proj": {8, 12}, "post_attention_layernorm": {8},
		"mlp.gate_proj": {12, 8}, "mlp.up_proj": {12, 8}, "mlp.down_proj": {8, 12}}, shapes(fs["head"]))
	assert.Equal(t, map[string]graph.Shape{"self_attn.q_proj": {8, 8}, "self_attn.k_proj": {4, 8}, "self_attn.v_proj": {4, 8},
		"self_attn.q_norm": {8},
		"self_attn.k_norm": {4}, "self_attn.o_proj": {8, 8}, "post_attention_layernorm": {8}, "mlp.gate_proj": {12, 8},
		"mlp.up_proj": {12, 8}, "mlp.down_proj": {8, 12}, "post_feedforward_layernorm": {8}}, shapes(fs["post"]))
	both := shapes(fs["both"])
	for _, name := range []string{"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
		"post_feedforward_layernorm"} {
		assert.Contains(t, both, name)
	}
	assert.Equal(t, map[string]graph.Shape{"self_attn.q_proj": {8, 8}, "self_attn.k_proj": {4, 8}, "self_attn.v_proj": {4, 8},
		"self_attn.o_proj": {8, 8}, "mlp.up_proj": {12, 8}, "mlp.down_proj": {8, 12}}, shapes(fs["bare"]))
}

func TestInitialValuesOfFeatures(t *testing.T) {
	c := features()["both"]
	c.ZeroInit = true
	for _, p := range c.Parameters() {
		first := p.Initial(1)[0]
		switch p.Name {
		case "model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight",
			"model.layers.0.input_layernorm.weight":
			assert.Zero(t, first, p.Name)
		case "model.layers.0.mlp.up_proj.weight":
			assert.NotZero(t, first, p.Name)
		}
	}
}

// Attention outside of windows is no work: 12 a query's element and the key that it meets, on average.
func TestFLOPsOfWindows(t *testing.T) {
	c := small()
	full := c.FLOPsPerToken()
	c.Attention.Window, c.Attention.Pattern = 2, []string{model.LocalLayer, model.FullLayer}
	keys := (1 + 2*5.0) / 6 // the first token meets one, the others two
	assert.InDelta(t, 12*8*(3-keys), full-c.FLOPsPerToken(), 12*8*0.2)
	c.Attention.Window = c.SeqLen
	assert.Equal(t, full, c.FLOPsPerToken())
}

// An untrained token has no gradient of its input embedding. Losses and the other gradients stay. YaRN multiplies
// rotated queries and keys. Norms of heads without weights come after that and divide by the factor again; those with
// weights come before.
func TestYaRNFactorAndNormsOfHeads(t *testing.T) {
	loss := func(weights bool, factor float64) float64 {
		c := small()
		c.Norm.QK, c.Norm.QKWeight, c.Norm.Eps = model.QKHead, weights, 1e-12
		c.Rope.Scaling = model.Scaling{Kind: model.YaRNScaling, Factor: 3, Low: 0.1, High: 1.5, Original: 12, Attention: factor}
		require.NoError(t, c.Validate())
		g, err := c.Grad(1, 1, false)
		require.NoError(t, err)
		return run(t, g, microbatch(c, model.Inputs{}, 1, 0), initial(c, g))[model.LossOutput].Data[0]
	}
	assert.InDelta(t, loss(false, 1), loss(false, 2), 1e-6)
	assert.Greater(t, math.Abs(loss(true, 1)-loss(true, 2)), 1e-4)
}

func TestUntrainedTokens(t *testing.T) {
	train := func(c model.Config) (loss float64, grads map[string][]float64) {
		g, err := c.Grad(1, 1, false)
		require.NoError(t, err)
		vars := initial(c, g)
		in := microbatch(c, model.Inputs{}, 1, 0)
		loss, grads = run(t, g, in, vars)[model.LossOutput].Data[0], map[string][]float64{}
		for _, p := range c.Parameters() {
			grads[p.Name] = gradient(c, vars, p.Name)
		}
		return loss, grads
	}
	c := small()
	c.TieEmbeddings = false
	token := int(ids(c, 1, 0).Data[0])
	wantLoss, want := train(c)
	c.Untrained = []int{token}
	gotLoss, got := train(c)
	assert.Equal(t, wantLoss, gotLoss)
	row := want["model.embed_tokens.weight"][token*c.DModel:][:c.DModel]
	assert.NotContains(t, row, 0.0)
	clear(row)
	assert.Equal(t, want, got)
}
