package model_test

import (
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mixture is a small mixture of experts.
func mixture() model.Config {
	c := small()
	c.FFN.DFF, c.MoE = 0, model.MoE{Experts: 4, TopK: 2, DFF: 6, Score: model.SoftmaxScore, Scale: 1}
	return c
}

// The class of a model follows from its features. Its config.json is read as the model.
func TestClassOfFeatures(t *testing.T) {
	for _, x := range []struct {
		class  string
		base   model.Config
		change func(c *model.Config)
	}{
		{"LlamaForCausalLM", small(), func(c *model.Config) {
			c.Rope.Scaling = model.Scaling{Kind: model.Llama3Scaling, Factor: 8, Low: 1, High: 4, Original: 64}
		}},
		{"LlamaForCausalLM", small(), func(c *model.Config) { c.Attention.HeadDim = 6 }},
		{"LlamaForCausalLM", small(), func(c *model.Config) { c.Rope.Scaling = model.Scaling{Kind: model.LinearScaling, Factor: 4} }},
		{"MistralForCausalLM", small(), func(c *model.Config) { c.Attention.HeadDim, c.DModel = 6, 9 }},
		{"MistralForCausalLM", small(), func(c *model.Config) { c.Attention.Window = 3 }},
		{"Qwen3ForCausalLM", small(), func(c *model.Config) { c.Norm.QK, c.TieEmbeddings = model.QKHead, true }},
		{"Qwen3ForCausalLM", small(), func(c *model.Config) {
			c.NLayers, c.Norm.QK, c.Attention.Window, c.Attention.Pattern = 3, model.QKHead, 3, []string{"local", "full"}
		}},
		{"Olmo2ForCausalLM", small(), func(c *model.Config) { c.Norm.QK, c.Norm.Place = model.QKFull, model.NormPost }},
		{"Olmo3ForCausalLM", small(), func(c *model.Config) {
			c.Norm.QK, c.Norm.Place, c.Attention.Window, c.Attention.Pattern = model.QKFull, model.NormPost, 3, []string{"local", "full"}
			c.Rope.Scaling = model.Scaling{Kind: model.Llama3Scaling, Factor: 8, Low: 1, High: 4, Original: 64}
		}},
		{"Olmo3ForCausalLM", small(), func(c *model.Config) {
			c.Norm.QK, c.Norm.Place, c.Attention.Window, c.Attention.Pattern = model.QKFull, model.NormPost, 3, []string{"local", "full"}
			c.Rope.Scaling = model.Scaling{Kind: model.YaRNScaling, Factor: 8, Low: 1, High: 32, Original: 64, Layers: model.FullLayers}
		}},
		{"Qwen3ForCausalLM", small(), func(c *model.Config) {
			c.Norm.QK = model.QKHead
			c.Rope.Scaling = model.Scaling{Kind: model.YaRNScaling, Factor: 4, Low: 2, High: 16, Original: 64, Attention: 1.5}
		}},
		{"SmolLM3ForCausalLM", small(), func(c *model.Config) { c.Attention.Rope, c.Untrained = []int{1, 0}, []int{0} }},
		{"SmolLM3ForCausalLM", small(), func(c *model.Config) {
			c.NLayers, c.Attention.Rope, c.Attention.Window, c.Attention.Pattern = 4, []int{1, 0}, 3, []string{"local", "local", "full"}
		}},
		{"SmolLM3ForCausalLM", small(), func(c *model.Config) { c.Attention.Window, c.Attention.Pattern = 3, []string{"full", "local"} }},
		{"NanoChatForCausalLM", small(), func(c *model.Config) {
			c.Norm.Weight, c.Norm.Embedding, c.Norm.QK, c.FFN.Kind, c.Logits.Softcap = false, true, model.QKHead, model.ReLU2, 15
		}},
		{"OlmoeForCausalLM", mixture(), func(c *model.Config) { c.Norm.QK = model.QKFull }},
		{"OlmoeForCausalLM", mixture(), func(c *model.Config) { c.Norm.QK, c.Attention.HeadDim = model.QKFull, 6 }},
		{"Qwen3MoeForCausalLM", mixture(), func(c *model.Config) {
			c.Norm.QK, c.MoE.Normalize, c.MoE.DenseFirst, c.FFN.DFF, c.Attention.Window = model.QKHead, true, 1, 12, 3
		}},
		{"Qwen3MoeForCausalLM", mixture(), func(c *model.Config) { c.Norm.QK, c.MoE.Balance.Aux = model.QKHead, 0.01 }},
		{"MixtralForCausalLM", mixture(), func(c *model.Config) { c.MoE.Normalize, c.MoE.Balance.Z = true, 0.01 }},
		{"Glm4MoeForCausalLM", mixture(), func(c *model.Config) {
			c.MoE.Score, c.MoE.Shared, c.MoE.Scale, c.MoE.Normalize, c.MoE.Balance = model.SigmoidScore, 2, 2.5, true,
				model.Balance{Bias: 1e-3, Proportional: true}
		}},
		{"Glm4MoeForCausalLM", mixture(), func(c *model.Config) {
			c.MoE.Score, c.MoE.Shared, c.MoE.Normalize, c.Norm.QK = model.SigmoidScore, 0, true, model.QKHead
		}},
		{"Dots1ForCausalLM", mixture(), func(c *model.Config) {
			c.MoE.Score, c.MoE.Shared, c.Norm.QK, c.Attention.Window = model.SigmoidScore, 1, model.QKHead, 3
		}},
	} {
		c := x.base
		x.change(&c)
		require.NoError(t, c.Validate())
		require.NoError(t, c.Exportable(), x.class)
		text := c.HuggingFace()
		var m map[string]any
		require.NoError(t, json.Unmarshal(text, &m))
		assert.Equal(t, []any{x.class}, m["architectures"])
		back, err := model.FromHuggingFace(text)
		require.NoError(t, err)
		c.MoE.Balance = model.Balance{} // of training
		assert.Equal(t, c, back, x.class)
		saved, err := model.FromJSON(c.JSON())
		require.NoError(t, err)
		assert.Equal(t, c, saved, x.class)
	}
}

// A feature without a class is refused by its key when the model is exported, not before.
func TestFeaturesWithoutAClass(t *testing.T) {
	for want, change := range map[string]func(c *model.Config){
		`rope.scaling.layers: found "full", expected "", which MistralForCausalLM`: func(c *model.Config) {
			c.Attention.Window = 3
			c.Rope.Scaling = model.Scaling{Kind: model.YaRNScaling, Factor: 8, Low: 1, High: 32, Original: 64, Layers: model.FullLayers}
		},
		"logits.softcap: found 2, expected 0, which LlamaForCausalLM of Transformers has":    func(c *model.Config) { c.Logits.Softcap = 2 },
		`norm.place: found "both", expected "pre", which LlamaForCausalLM of Transformers`:   func(c *model.Config) { c.Norm.Place = model.NormBoth },
		`norm.qk: found "full", expected "none", which LlamaForCausalLM of Transformers has`: func(c *model.Config) { c.Norm.QK = model.QKFull },
		`ffn.kind: found "geglu", expected "swiglu"`:                                         func(c *model.Config) { c.FFN.Kind = model.GeGLU },
		"norm.unit_offset: found true, expected false":                                       func(c *model.Config) { c.Norm.UnitOffset = true },
		"norm.qk_weight: found false, expected true, which Qwen3ForCausalLM": func(c *model.Config) {
			c.Norm.QK,
				c.Norm.QKWeight = model.QKHead, false
		},
		"moe.balance.bias: found 0.001, expected 0, which MixtralForCausalLM": func(c *model.Config) {
			*c = mixture()
			c.MoE.Normalize, c.MoE.Balance.Bias = true, 1e-3
		},
	} {
		c := small()
		change(&c)
		require.NoError(t, c.Validate(), want)
		assert.ErrorContains(t, c.Exportable(), want)
		assert.Nil(t, c.HuggingFace())
		for _, p := range c.Parameters() {
			assert.Equal(t, p.Name, model.ExportNaming(c).Tensors(p)[0].Name, "a tensor of its own, until the export is refused")
		}
		back, err := model.FromJSON(c.JSON())
		require.NoError(t, err)
		assert.Equal(t, c, back)
	}
}

// Keys of published models, and keys with values that are not supported.
func TestPublishedConfigs(t *testing.T) {
	const sizes = `"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
		"hidden_act": "silu", "initializer_range": 0.02, "use_cache": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "attention_bias": false`
	read := func(more string) (model.Config, error) {
		return model.FromHuggingFace([]byte("{" + sizes + "," + more + "}"))
	}
	good := func(more string) model.Config {
		t.Helper()
		c, err := read(more)
		require.NoError(t, err)
		return c
	}
	llama := good(`"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 32, "eos_token_id": [1, 2], "mlp_bias": false, "pretraining_tp": 1, "rope_theta": 5e5,
		"rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}`)
	assert.Equal(t, model.Rope{Theta: 5e5, Scaling: model.Scaling{Kind: "llama3", Factor: 32, Low: 1, High: 4, Original: 8192}}, llama.Rope)
	assert.Equal(t, 32, llama.HeadDim())
	assert.Equal(t, 2048, llama.SeqLen)
	assert.Equal(t, 4096, good(`"architectures": ["MistralForCausalLM"], "sliding_window": 4096`).Attention.Window)
	qwen := good(`"architectures": ["Qwen3ForCausalLM"], "max_window_layers": 28, "sliding_window": null, "use_sliding_window": false, "rope_scaling": null`)
	assert.Equal(t, model.Attention{HeadDim: 128}, qwen.Attention)
	assert.Equal(t, model.Attention{Window: 8, Pattern: []string{"full", "local", "local", "local"}, HeadDim: 128},
		good(`"architectures": ["Qwen3ForCausalLM"], "max_window_layers": 1, "sliding_window": 8, "use_sliding_window": true`).Attention)
	olmo3 := good(`"architectures": ["Olmo3ForCausalLM"], "rope_theta": 500000, "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
		"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"}`) // the published OLMo 3 7B
	assert.Equal(t, model.Attention{Window: 4096, Pattern: []string{"local", "local", "local", "full"}}, olmo3.Attention)
	assert.Equal(t, model.Rope{Theta: 5e5, Scaling: model.Scaling{Kind: "yarn", Factor: 8, Low: 1, High: 32, Original: 8192,
		Layers: "full"}}, olmo3.Rope)
	for more, want := range map[string][]int{`"pad_token_id": 5`: {5}, `"pad_token_id": -1`: {127}, `"pad_token_id": null`: nil,
		`"pad_token_id": 4096`: nil, `"head_dim": 16`: {1}} {
		assert.Equal(t, want, good(`"architectures": ["Olmo2ForCausalLM"], `+more).Untrained, more)
	}
	smol := good(`"architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 4, "pretraining_tp": 2, "max_window_layers": 28, "sliding_window": null, "use_sliding_window": false,
		"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]`)
	assert.Equal(t, model.Attention{Rope: []int{1, 1, 1, 0}}, smol.Attention)
	assert.True(t, smol.TieEmbeddings)
	olmoe := good(`"architectures": ["OlmoeForCausalLM"], "clip_qkv": null, "num_experts": 8, "output_router_logits": false, "router_aux_loss_coef": 0.01`)
	assert.Equal(t, model.MoE{Experts: 8, TopK: 8, DFF: 96, Score: "softmax", Scale: 1}, olmoe.MoE)
	moe := good(`"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "mlp_only_layers": [1, 0], "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
		"norm_topk_prob": true, "max_window_layers": 48`)
	assert.Equal(t, model.MoE{Experts: 8, TopK: 2, DFF: 16, DenseFirst: 2, Normalize: true, Score: "softmax", Scale: 1}, moe.MoE)
	assert.Equal(t, 96, moe.FFN.DFF)
	for more, want := range map[string]string{
		`"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 8`:                                                                                                                 `architectures: found ["DeepseekV3ForCausalLM"], expected one of LlamaForCausalLM`,
		`"architectures": ["OlmoeForCausalLM"], "clip_qkv": 8`:                                                                                                                          "clip_qkv: found 8, expected null",
		`"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [2]`:                                                                                                              "mlp_only_layers: found [2], expected the first layers",
		`"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 2`:                                                                                                            "decoder_sparse_step: found 2, expected 1, or a step",
		`"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0, 2], "decoder_sparse_step": 2`:                                                                                 "mlp_only_layers: found [0,2], expected the first layers",
		`"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [9, 0, 0], "decoder_sparse_step": 1`:                                                                              "",
		`"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [], "decoder_sparse_step": 4`:                                                                                     "",
		`"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 1000000000`:                                                                                                           "num_experts: found 1000000000, expected an integer from 1 to 4096",
		`"architectures": ["MixtralForCausalLM"], "intermediate_size": 0`:                                                                                                               "intermediate_size: found 0, expected an integer from 1 to 4194304",
		`"architectures": ["LlamaForCausalLM"], "rope_parameters": {"full_attention": {"rope_theta": 5}}`:                                                                               `rope_parameters: found {"full_attention":{"rope_theta":5}}, expected the keys of rope_type default`,
		`"architectures": ["MistralForCausalLM"], "attention_bias": true, "mlp_bias": true`:                                                                                             "",
		`"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"]`:                                             "full_attention alone, since there is no window",
		`"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8`:                                                          "",
		`"architectures": ["OlmoeForCausalLM"], "sliding_window": 8`:                                                                                                                    "sliding_window: found 8, expected null",
		`"architectures": ["MistralForCausalLM"], "sliding_window": -1`:                                                                                                                 "sliding_window: found -1, expected at least 1, or null for none",
		`"architectures": ["Qwen3ForCausalLM"], "sliding_window": 0, "use_sliding_window": false`:                                                                                       "",
		`"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 3`:                                                                                                               "num_attention_heads: found 4, expected a multiple of num_key_value_heads (3)",
		`"architectures": ["Dots1ForCausalLM"], "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": -1`:                                    "first_k_dense_replace: found -1, expected an integer from 0 to 3",
		`"architectures": ["LlamaForCausalLM"], "rope_parameters": {"rope_theta": 5}, "rope_scaling": {"rope_type": "dynamic"}`:                                                         `rope_scaling.rope_type: found "dynamic"`,
		`"architectures": ["Glm4MoeForCausalLM"], "head_dim": 16`:                                                                                                                       "partial_rotary_factor: found 0.5, expected 1",
		`"architectures": ["Glm4MoeForCausalLM"], "partial_rotary_factor": 1.0, "n_group": 2`:                                                                                           "n_group: found 2, expected 1",
		`"architectures": ["Olmo3ForCausalLM"], "rope_scaling": {"rope_type": "llama3"}`:                                                                                                "rope_scaling.factor: found 0",
		`"architectures": ["Olmo3ForCausalLM"], "layer_types": ["full_attention"]`:                                                                                                      "layer_types: found",
		`"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]`:                                                                                                                "no_rope_layers: found [1], expected an entry for each of 4 layers",
		`"architectures": ["MixtralForCausalLM"], "num_local_experts": "8"`:                                                                                                             `num_local_experts: found "8", expected an integer`,
		`"architectures": ["LlamaForCausalLM"], "rope_scaling": {"type": "longrope", "beta_fast": 32}`:                                                                                  `rope_scaling.rope_type: found "longrope", expected "default", "linear", "llama3" or "yarn"`,
		`"architectures": ["LlamaForCausalLM"], "rope_scaling": {"type": "llama3",` + "\n" + `"beta": 32}`:                                                                              "rope_scaling.factor: found 0",
		`"architectures": ["Dots1ForCausalLM"], "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 0`:                                     "routed_scaling_factor: found 0, expected a number above 0",
		`"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0, 1, 2, 3]`:                                                                                                     "mlp_only_layers: found [0,1,2,3], expected fewer than all 4 layers",
		`"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9`:                                                                                                             "num_experts_per_tok: found 9",
		`"architectures": ["LlamaForCausalLM"], "num_attention_heads": 5, "head_dim": 16`:                                                                                               "hidden_size: found 64, expected a multiple of num_attention_heads (5)",
		`"architectures": ["Olmo3ForCausalLM"], "rope_parameters": {"full_attention": {"rope_theta": 500000}}`:                                                                          "",
		`"architectures": ["Olmo3ForCausalLM"], "rope_parameters": {"full_attention": {"rope_theta": 10000}}`:                                                                           "rope_parameters: found",
		`"architectures": ["Olmo3ForCausalLM"], "rope_parameters": {"full_attention": {"rope_theta": 500000, "rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8}}`: "",
		`"architectures": ["Qwen3ForCausalLM"], "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": false}`:                       "rope_scaling.truncate: found false, expected true",
		`"architectures": ["Qwen3ForCausalLM"], "rope_scaling": {"rope_type": "yarn", "beta_fast": 1, "beta_slow": 2, "factor": 4.0}`:                                                   "rope_scaling.high_freq_factor: found 1, expected more than",
	} {
		if _, err := read(more); want == "" {
			assert.NoError(t, err, more)
		} else {
			assert.ErrorContains(t, err, want, more)
		}
	}
}

// Files have experts apart, or gates and ups together.
func TestNamings(t *testing.T) {
	c := mixture()
	c.Norm.QK = model.QKFull
	var gate model.Parameter
	for _, p := range c.Parameters() {
		if p.Name == "model.layers.0.mlp.experts.up_proj.weight" {
			gate = p
		}
	}
	var names [][]string
	for _, n := range c.Namings() {
		var list []string
		for _, x := range n.Tensors(gate) {
			list = append(list, x.Name)
		}
		names = append(names, list)
	}
	assert.Equal(t, [][]string{{"model.layers.0.mlp.experts.up_proj.weight"},
		{"model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.1.up_proj.weight",
			"model.layers.0.mlp.experts.2.up_proj.weight",
			"model.layers.0.mlp.experts.3.up_proj.weight"}, {"model.layers.0.mlp.experts.gate_up_proj"}}, names)
	fused := c.Namings()[2].Tensors(gate)[0]
	matrix := 6 * c.DModel
	assert.Equal(t, []int{4, 12, c.DModel}, []int(fused.Shape))
	assert.Equal(t, model.Piece{From: 3 * matrix, To: matrix, Len: matrix}, fused.Pieces[1])
}

// A config.json with any key or value changed is read or refused, quickly and without a panic.
func TestConfigsThatAreMutated(t *testing.T) {
	paths, err := filepath.Glob("../../pipeline/train/testdata/families/*/config.json")
	require.NoError(t, err)
	require.Len(t, paths, 12)
	r := rand.New(rand.NewPCG(1, 2))
	values := []any{nil, true, "", "x", 0, -1, 1, 2, 7, 0.5, 1 << 12, 1 << 31, math.MaxInt64, 1e300, -1e-300, []any{}, []any{1, 0, 1},
		[]any{"full_attention"}, map[string]any{}, map[string]any{"rope_type": "llama3"}, map[string]any{"full_attention": 1}}
	var keys []string
	var configs []map[string]any
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var m map[string]any
		require.NoError(t, json.Unmarshal(text, &m))
		configs = append(configs, m)
		keys = slices.AppendSeq(keys, maps.Keys(m))
	}
	slices.Sort(keys)
	read := 0
	for range 2000 {
		m := maps.Clone(configs[r.IntN(len(configs))])
		for range 1 + r.IntN(3) {
			switch key := keys[r.IntN(len(keys))]; r.IntN(4) {
			case 0:
				delete(m, key)
			case 1:
				m[key] = configs[r.IntN(len(configs))][key]
			default:
				m[key] = values[r.IntN(len(values))]
			}
		}
		text, err := json.Marshal(m)
		require.NoError(t, err)
		c, err := model.FromHuggingFace(text)
		if err != nil {
			continue
		}
		read++
		require.NoError(t, c.Validate(), "%s", text)
		if again, err := model.FromHuggingFace(c.HuggingFace()); c.Exportable() == nil {
			require.NoError(t, err, "%s", text)
			require.Equal(t, c, again, "%s", text)
		}
	}
	assert.Greater(t, read, 200)
}
