package model

// What is known of model families: their published sizes, their classes in Hugging Face Transformers, and their
// architectures in llama.cpp. A new family is rows of these tables.

// presets are models as published, with the context of their published configs unless a comment says otherwise, and a
// tiny model that trains in minutes on a CPU. A family is a combination of features, and sizes.
func presets() []preset {
	return []preset{
		{"tiny", family(256, 128, 1e4, 1e-5).sized(128, 4, 4, 4, 352)},

		{"smollm2-135m", family(49152, 2048, 1e5, 1e-5).tied().sized(576, 30, 9, 3, 1536)},
		{"smollm2-360m", family(49152, 2048, 1e5, 1e-5).tied().sized(960, 32, 15, 5, 2560)},
		{"smollm3-3b", family(128256, 65536, 5e6, 1e-6).tied().rope(1, 1, 1, 0).sized(2048, 36, 16, 4, 11008)},

		{"llama3.2-1b", family(128256, 131072, 5e5, 1e-5).tied().llama3(32).sized(2048, 16, 32, 8, 8192)},
		{"llama3.2-3b", family(128256, 131072, 5e5, 1e-5).tied().llama3(32).sized(3072, 28, 24, 8, 8192)},
		{"llama3.1-8b", family(128256, 131072, 5e5, 1e-5).llama3(8).sized(4096, 32, 32, 8, 14336)},

		{"mistral-7b-v0.1", family(32000, 32768, 1e4, 1e-5).windows(4096).sized(4096, 32, 32, 8, 14336)},
		{"mixtral-8x7b", family(32000, 32768, 1e6, 1e-5).experts(MoE{Experts: 8, TopK: 2, DFF: 14336, Normalize: true,
			Balance: Balance{Aux: 0.02}}).
			sized(4096, 32, 32, 8, 0)},

		{"qwen3-0.6b", qwen3().tied().sized(1024, 28, 16, 8, 3072)},
		{"qwen3-1.7b", qwen3().tied().sized(2048, 28, 16, 8, 6144)},
		{"qwen3-4b", qwen3().tied().sized(2560, 36, 32, 8, 9728)},
		{"qwen3-8b", qwen3().sized(4096, 36, 32, 8, 12288)},
		{"qwen3-30b-a3b", qwen3().experts(MoE{Experts: 128, TopK: 8, DFF: 768, Normalize: true, Balance: Balance{Aux: 1e-3}}).
			sized(2048, 48, 32, 4, 0)},

		{"olmo2-1b", olmo(100352, 4096).sized(2048, 16, 16, 16, 8192)},
		{"olmo2-7b", olmo(100352, 4096).sized(4096, 32, 32, 32, 11008)},
		{"olmo2-13b", olmo(100352, 4096).sized(5120, 40, 40, 40, 13824)},
		// the context of its pretraining
		{"olmo3-7b", olmo(100278, 8192).windows(4096, LocalLayer, LocalLayer, LocalLayer, FullLayer).sized(4096, 32, 32, 32, 11008)},
		{"olmoe-1b-7b", family(50304, 4096, 1e4, 1e-5).norms(NormPre, QKFull).
			experts(MoE{Experts: 64, TopK: 8, DFF: 1024, Balance: Balance{Aux: 0.01, Z: 1e-3}}).sized(2048, 16, 16, 16, 0)},

		// DeepSeek-V3's expert block on plain attention.
		{"dots1-142b", family(152064, 32768, 1e7, 1e-5).norms(NormPre, QKHead).
			experts(MoE{Experts: 128, TopK: 6, DFF: 1408, Shared: 2, DenseFirst: 1, Score: SigmoidScore, Normalize: true, Scale: 2.5,
				Balance: Balance{Bias: 1e-3}}).sized(4096, 62, 32, 32, 10944)},

		{"nanochat-d20", nanochat().sized(1280, 20, 10, 10, 5120)},
	}
}

// family is a Llama of a vocabulary and a context.
func family(vocab, seqLen int, theta, eps float64) Config {
	c := Defaults()
	c.VocabSize, c.SeqLen, c.Rope.Theta, c.Norm.Eps = vocab, seqLen, theta, eps
	return c
}

func qwen3() Config {
	c := family(151936, 40960, 1e6, 1e-6).norms(NormPre, QKHead)
	c.Attention.HeadDim = 128
	return c
}

func olmo(vocab, seqLen int) Config { return family(vocab, seqLen, 5e5, 1e-6).norms(NormPost, QKFull) }

// nanochat normalizes queries and keys after it has rotated them, which is the same without weights.
func nanochat() Config {
	c := family(65536, 2048, 1e4, 1e-6)
	c.Norm.Weight, c.Norm.QK, c.Norm.Embedding = false, QKHead, true
	c.FFN.Kind, c.Logits.Softcap, c.ZeroInit = ReLU2, 15, true
	return c
}

func (c Config) sized(dModel, layers, heads, kvHeads, dFF int) Config {
	c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF = dModel, layers, heads, kvHeads, dFF
	return c.Completed()
}

func (c Config) tied() Config {
	c.TieEmbeddings = true
	return c
}

func (c Config) rope(layers ...int) Config {
	c.Attention.Rope = layers
	return c
}

func (c Config) windows(window int, pattern ...string) Config {
	c.Attention.Window, c.Attention.Pattern = window, pattern
	return c
}

func (c Config) llama3(factor float64) Config {
	c.Rope.Scaling = Scaling{Kind: Llama3Scaling, Factor: factor, Low: 1, High: 4, Original: 8192}
	return c
}

func (c Config) experts(m MoE) Config {
	c.MoE = m
	return c
}

func (c Config) norms(place, qk string) Config {
	c.Norm.Place, c.Norm.QK = place, qk
	return c
}

// hfClasses lists the classes. The first one that has a model exports it.
func hfClasses() []hfClass {
	perExpert := []hfName{{own: "mlp.experts.", theirs: "mlp.experts.%d."}}
	return []hfClass{
		{name: "LlamaForCausalLM", kind: "llama", parts: []hfPart{hfSizes, hfBias, hfDense, hfRope, hfDivisible,
			hfOnly("mlp_bias", false)}},
		{name: "MistralForCausalLM", kind: "mistral", parts: []hfPart{hfSizes, hfDense, hfRope, hfWindow},
			absent: map[string]any{"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}},
		{name: "Qwen3ForCausalLM", kind: "qwen3", parts: []hfPart{hfSizes, hfBias, hfDense, hfRope, hfHeadNorm, hfSwitchedWindow,
			hfLayerTypes(lastLocal)},
			absent: map[string]any{"head_dim": 128, "sliding_window": 4096, "num_key_value_heads": 32, "max_window_layers": 28,
				"max_position_embeddings": 32768}},
		{name: "Olmo2ForCausalLM", kind: "olmo2", parts: []hfPart{hfSizes, hfBias, hfDense, hfRope, hfFullNorm, hfPostNorm},
			absent: map[string]any{"rms_norm_eps": 1e-5, "pad_token_id": 1}},
		{name: "Olmo3ForCausalLM", kind: "olmo3", parts: []hfPart{hfSizes, hfBias, hfDense, hfRopeOfKinds, hfFullNorm, hfPostNorm,
			hfWindow, hfLayerTypes(threeLocal)},
			absent: map[string]any{"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 500000.0, "pad_token_id": 1}},
		{name: "SmolLM3ForCausalLM", kind: "smollm3", parts: []hfPart{hfSizes, hfBias, hfDense, hfRope, hfRopeLayers, hfSwitchedWindow,
			hfLayerTypes(localWithoutRope),
			hfOnly("mlp_bias", false)}, absent: map[string]any{"num_key_value_heads": 4, "tie_word_embeddings": true, "rope_theta": 2e6,
			"pad_token_id": 128004, "max_position_embeddings": 32768}},
		{name: "NanoChatForCausalLM", kind: "nanochat", parts: []hfPart{hfSizes, hfBias, hfDense, hfRope, hfNanoChat},
			absent: map[string]any{"hidden_act": "relu2", "final_logit_softcapping": 15.0, "pad_token_id": 1},
			names: []hfName{{own: "mlp.up_proj.", theirs: "mlp.fc1."}, {own: "mlp.down_proj.", theirs: "mlp.fc2."},
				{own: "self_attn.q_proj.", halves: true}, {own: "self_attn.k_proj.", halves: true}}},
		{name: "OlmoeForCausalLM", kind: "olmoe", parts: []hfPart{hfSizes, hfBias, hfOnly("clip_qkv", nil), hfRope, hfFullNorm,
			hfExperts("num_experts", "num_local_experts", "intermediate_size"), hfNormalize},
			absent: map[string]any{"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "max_position_embeddings": 4096,
				"pad_token_id": 1}, names: perExpert},
		{name: "Qwen3MoeForCausalLM", kind: "qwen3_moe", parts: []hfPart{hfSizes, hfBias, hfRope, hfHeadNorm, hfSwitchedWindow,
			hfExperts("num_experts", "num_local_experts", "moe_intermediate_size"), hfNormalize, hfDenseLayers},
			absent: map[string]any{"num_key_value_heads": 4, "sliding_window": 4096, "num_experts": 128, "num_experts_per_tok": 8,
				"moe_intermediate_size": 768, "max_position_embeddings": 32768}, names: perExpert},
		{name: "MixtralForCausalLM", kind: "mixtral",
			parts: []hfPart{hfSizes, hfRope, hfWindow, hfExperts("num_local_experts", "num_experts", "intermediate_size"), hfNormalized},
			absent: map[string]any{"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
				"rope_theta": 1e6, "max_position_embeddings": 131072},
			names: []hfName{{own: "mlp.gate.", theirs: "block_sparse_moe.gate."},
				{own: "mlp.experts.gate_proj.", theirs: "block_sparse_moe.experts.%d.w1."},
				{own: "mlp.experts.up_proj.", theirs: "block_sparse_moe.experts.%d.w3."},
				{own: "mlp.experts.down_proj.", theirs: "block_sparse_moe.experts.%d.w2."}}},
		{name: "Glm4MoeForCausalLM", kind: "glm4_moe", parts: []hfPart{hfSizes, hfBias, hfRope, hfOptionalHeadNorm,
			hfExperts("n_routed_experts", "num_local_experts", "moe_intermediate_size"), hfNormalize, hfSharedExperts},
			absent: map[string]any{"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "n_routed_experts": 128, "num_experts_per_tok": 8,
				"n_shared_experts":      1,
				"first_k_dense_replace": 1, "moe_intermediate_size": 1408, "norm_topk_prob": true, "partial_rotary_factor": 0.5,
				"max_position_embeddings": 131072}, names: perExpert},
		{name: "Dots1ForCausalLM", kind: "dots1", parts: []hfPart{hfSizes, hfBias, hfRope, hfHeadNorm, hfWindow, hfLayerTypes(lastLocal),
			hfExperts("n_routed_experts", "num_local_experts", "moe_intermediate_size"), hfNormalize, hfSharedExperts},
			absent: map[string]any{"sliding_window": 4096, "max_window_layers": 62, "moe_intermediate_size": 1408}, names: perExpert},
	}
}

// ggufArchs lists the architectures of llama.cpp that have one of the classes.
func ggufArchs() []ggufArch {
	postNorm := func(c *Config) { c.Norm.QK, c.Norm.Place = QKFull, NormPost }
	headNorm := func(c *Config) { c.Norm.QK = QKHead }
	return []ggufArch{
		{name: "llama", classes: []string{"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"}, interleaved: true,
			scaling: true, normalized: 1, set: func(*Config) {}},
		{name: "smollm3", classes: []string{"SmolLM3ForCausalLM"}, interleaved: true, set: func(c *Config) {
			c.Attention.Rope = []int{1, 1, 1, 0}[:min(max(c.NLayers, 1), 4)]
		}},
		{name: "qwen3", classes: []string{"Qwen3ForCausalLM"}, set: headNorm},
		{name: "qwen3moe", classes: []string{"Qwen3MoeForCausalLM"}, normalized: 1, set: headNorm},
		{name: "olmo2", classes: []string{"Olmo2ForCausalLM", "Olmo3ForCausalLM"}, derivedHead: true, ownHead: true, window: true,
			set: postNorm, names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
		{name: "olmoe", classes: []string{"OlmoeForCausalLM"}, derivedHead: true, ownHead: true, normalized: -1,
			set: func(c *Config) { c.Norm.QK = QKFull }},
		{name: "dots1", classes: []string{"Dots1ForCausalLM"}, ownHead: true, set: func(c *Config) {
			c.Norm.QK, c.MoE.Score = QKHead,
				SigmoidScore
		}},
		{name: "glm4moe", classes: []string{"Glm4MoeForCausalLM"}, set: func(c *Config) { c.MoE.Score = SigmoidScore },
			names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
	}
}
