package model

import (
	"slices"
)

// hfClass is a class of Hugging Face Transformers. Its parts read config.json into a Config and write it. A Config has
// the class if reading what the class writes gives the Config again: see hfClassOf.
type hfClass struct {
	name   string         // in architectures
	kind   string         // model_type
	absent map[string]any // transformers' values of absent keys, where they differ from hfAbsent
	parts  []hfPart
	names  []hfName // of tensors, where they differ from this package's
}

// hfPart is a feature of a class.
type hfPart struct {
	read  func(h *hfKeys, c *Config)
	write func(c Config, out map[string]any)
}

// hfSizes are the keys of every class.
var hfSizes = hfPart{func(h *hfKeys, c *Config) {
	c.VocabSize, c.DModel, c.NLayers, c.NHeads = h.int("vocab_size"), h.int("hidden_size"), h.int("num_hidden_layers"),
		h.int("num_attention_heads")
	c.NKVHeads, c.SeqLen, c.Norm.Eps = h.int("num_key_value_heads"), h.int("max_position_embeddings"), h.float("rms_norm_eps")
	c.TieEmbeddings, c.Attention.HeadDim = h.bool("tie_word_embeddings"), h.int("head_dim")
	if c.NKVHeads == 0 {
		c.NKVHeads = c.NHeads
	}
	// Absent or null there is none; a negative one counts from the end; one beyond the vocabulary never occurs.
	if h.raw("pad_token_id") != nil {
		id := h.int("pad_token_id")
		if id < 0 {
			id += c.VocabSize
		}
		if id >= 0 && id < c.VocabSize {
			c.Untrained = []int{id}
		}
	}
	activation := "silu"
	if h.absent["hidden_act"] != nil {
		activation = "relu2"
	}
	if got := h.text("hidden_act"); got != activation && (got != "swish" || activation != "silu") { // two names of one function
		h.refuse("hidden_act", "%q, the only supported value", activation)
	}
}, func(c Config, out map[string]any) {
	for key, v := range map[string]any{
		"vocab_size": c.VocabSize, "hidden_size": c.DModel, "num_hidden_layers": c.NLayers, "num_attention_heads": c.NHeads,
		"num_key_value_heads": c.NKVHeads, "max_position_embeddings": c.SeqLen, "rms_norm_eps": hfFloat(c.Norm.Eps),
		"head_dim":            c.HeadDim(),
		"tie_word_embeddings": c.TieEmbeddings, "hidden_act": "silu", "attention_bias": false, "attention_dropout": hfFloat(0),
		"initializer_range": InitStd, "torch_dtype": "float32", "use_cache": true, "pad_token_id": nil,
	} {
		out[key] = v
	}
	if len(c.Untrained) == 1 {
		out["pad_token_id"] = c.Untrained[0]
	}
}}

// hfOnly is a key with one supported value. It is written unless the value is null.
func hfOnly(key string, value any) hfPart {
	return hfPart{func(h *hfKeys, _ *Config) { h.only(key, value) }, func(_ Config, out map[string]any) {
		if value != nil {
			out[key] = value
		}
	}}
}

// hfBias are the biases of attention.
var hfBias = hfOnly("attention_bias", false)

// hfDense is a model without experts.
var hfDense = hfPart{func(h *hfKeys, c *Config) { c.FFN.DFF = h.int("intermediate_size") },
	func(c Config, out map[string]any) { out["intermediate_size"] = c.FFN.DFF }}

// hfDivisible is the check of LlamaConfig, head_dim or not.
var hfDivisible = hfPart{func(h *hfKeys, c *Config) {
	if c.NHeads > 0 && c.DModel%c.NHeads != 0 {
		h.refuse("hidden_size", "a multiple of num_attention_heads (%d)", c.NHeads)
	}
}, func(Config, map[string]any) {}}

// has is a part of classes that always have a feature.
func has(set func(c *Config)) hfPart {
	return hfPart{func(_ *hfKeys, c *Config) { set(c) }, func(Config, map[string]any) {}}
}

var (
	hfHeadNorm   = has(func(c *Config) { c.Norm.QK = QKHead })
	hfFullNorm   = has(func(c *Config) { c.Norm.QK = QKFull })
	hfPostNorm   = has(func(c *Config) { c.Norm.Place = NormPost })
	hfNormalized = has(func(c *Config) { c.MoE.Normalize = true })
)

var hfOptionalHeadNorm = hfPart{func(h *hfKeys, c *Config) {
	if h.bool("use_qk_norm") {
		c.Norm.QK = QKHead
	}
}, func(c Config, out map[string]any) { out["use_qk_norm"] = c.Norm.QK == QKHead }}

// hfNanoChat has norms without weights, one more after the embedding, and squared ReLU.
var hfNanoChat = hfPart{func(h *hfKeys, c *Config) {
	c.Norm.Weight, c.Norm.QKWeight, c.Norm.Embedding, c.Norm.QK, c.FFN.Kind = false, false, true, QKHead, ReLU2
	c.Logits.Softcap = h.float("final_logit_softcapping")
}, func(c Config, out map[string]any) {
	out["hidden_act"] = "relu2"
	if out["final_logit_softcapping"] = any(nil); c.Logits.Softcap > 0 {
		out["final_logit_softcapping"] = hfFloat(c.Logits.Softcap)
	}
}}

// hfWindow is a sliding window of every layer, or of the layers that hfLayerTypes names.
var hfWindow = hfPart{func(h *hfKeys, c *Config) {
	if c.Attention.Window = h.int("sliding_window"); c.Attention.Window < 1 && h.has("sliding_window") {
		h.refuse("sliding_window", "at least 1, or null for none")
	}
}, func(c Config, out map[string]any) {
	if out["sliding_window"] = any(nil); c.Attention.Window > 0 {
		out["sliding_window"] = c.Attention.Window
	}
}}

// hfSwitchedWindow is hfWindow with a key that turns it on.
var hfSwitchedWindow = hfPart{func(h *hfKeys, c *Config) {
	if h.bool("use_sliding_window") {
		hfWindow.read(h, c)
	}
	h.read["sliding_window"] = true
}, func(c Config, out map[string]any) {
	hfWindow.write(c, out)
	out["use_sliding_window"] = c.Attention.Window > 0
}}

// Kinds of layers in layer_types.
const (
	hfLocal = "sliding_attention"
	hfFull  = "full_attention"
)

// hfLayerTypes names the layers with a window. absent reports whether a layer has one where the key is absent.
func hfLayerTypes(absent func(h *hfKeys, c *Config, layer int) bool) hfPart {
	return hfPart{func(h *hfKeys, c *Config) {
		types := h.texts("layer_types")
		if len(types) != 0 && len(types) != c.NLayers ||
			slices.ContainsFunc(types, func(s string) bool { return s != hfLocal && s != hfFull }) {
			h.refuse("layer_types", "%d times %s or %s", c.NLayers, hfLocal, hfFull)
			return
		}
		if c.Attention.Window == 0 {
			if slices.Contains(types, hfLocal) {
				h.refuse("layer_types", "%s alone, since there is no window", hfFull)
			}
			return
		}
		for i := range min(c.NLayers, maxLayers) {
			kind := FullLayer
			if len(types) > 0 && types[i] == hfLocal || len(types) == 0 && absent(h, c, i) {
				kind = LocalLayer
			}
			c.Attention.Pattern = append(c.Attention.Pattern, kind)
		}
	}, func(c Config, out map[string]any) {
		var types []string
		for i := range c.NLayers {
			kind := hfFull
			if c.Attention.local(i) {
				kind = hfLocal
			}
			types = append(types, kind)
		}
		out["layer_types"] = types
	}}
}

// The rules of classes for absent layer_types.
func lastLocal(h *hfKeys, _ *Config, layer int) bool        { return layer >= h.int("max_window_layers") }
func threeLocal(_ *hfKeys, _ *Config, layer int) bool       { return layer%4 != 3 }
func localWithoutRope(_ *hfKeys, c *Config, layer int) bool { return !c.Layer(layer).Rope }

// hfRopeLayers names the layers that rotate queries and keys.
var hfRopeLayers = hfPart{func(h *hfKeys, c *Config) {
	list, interval := h.ints("no_rope_layers"), h.int("no_rope_layer_interval")
	if len(list) == 0 && interval < 1 {
		h.refuse("no_rope_layer_interval", "at least 1")
		return
	}
	if len(list) > 0 && len(list) < c.NLayers {
		h.refuse("no_rope_layers", "an entry for each of %d layers", c.NLayers)
		return
	}
	for i := range min(c.NLayers, maxLayers) {
		on := 1
		if len(list) > 0 && list[i] == 0 || len(list) == 0 && (i+1)%interval == 0 {
			on = 0
		}
		c.Attention.Rope = append(c.Attention.Rope, on)
	}
}, func(c Config, out map[string]any) {
	var list []int
	for i := range c.NLayers {
		on := 0
		if c.Layer(i).Rope {
			on = 1
		}
		list = append(list, on)
	}
	out["no_rope_layers"] = list
}}

// hfExperts is a mixture of experts. experts and alias are the two keys of the class for the number of experts; width
// is the key for their width.
func hfExperts(experts, alias, width string) hfPart {
	return hfPart{func(h *hfKeys, c *Config) {
		count := experts
		if !h.has(experts) && h.has(alias) {
			count = alias
		}
		c.MoE = MoE{Experts: h.int(count), TopK: h.int("num_experts_per_tok"), DFF: h.int(width), Score: SoftmaxScore, Scale: 1}
		if n := c.MoE.Experts; n < 1 || n > maxExperts {
			h.refuse(count, "an integer from 1 to %d", maxExperts)
		}
		if n := c.MoE.DFF; n < 1 || n > maxWidth {
			h.refuse(width, "an integer from 1 to %d", maxWidth)
		}
		h.read["intermediate_size"] = true
	}, func(c Config, out map[string]any) {
		out["intermediate_size"] = c.FFN.DFF
		if c.FFN.DFF == 0 {
			out["intermediate_size"] = c.MoE.DFF
		}
		out[experts], out["num_experts_per_tok"], out[width] = c.MoE.Experts, c.MoE.TopK, c.MoE.DFF
		if c.MoE.Score == SoftmaxScore {
			out["router_aux_loss_coef"] = hfFloat(c.MoE.Balance.Aux)
		}
	}}
}

var hfNormalize = hfPart{func(h *hfKeys, c *Config) { c.MoE.Normalize = h.bool("norm_topk_prob") },
	func(c Config, out map[string]any) { out["norm_topk_prob"] = c.MoE.Normalize }}

// denseFirst sets the number of dense layers.
func denseFirst(h *hfKeys, c *Config, layers int) {
	if c.MoE.DenseFirst = layers; layers != 0 {
		c.FFN.DFF = h.int("intermediate_size")
	}
}

// hfDenseLayers lists the dense layers, which must be the first ones. Among the other layers, every
// decoder_sparse_step-th layer, from that number on, is a mixture of experts.
var hfDenseLayers = hfPart{func(h *hfKeys, c *Config) {
	list, step := h.ints("mlp_only_layers"), h.int("decoder_sparse_step")
	if step < 1 {
		h.refuse("decoder_sparse_step", "at least 1")
		return
	}
	dense := func(layer int) bool { return slices.Contains(list, layer) || (layer+1)%step != 0 }
	layers, first := min(c.NLayers, maxLayers), 0
	for first < layers && dense(first) {
		first++
	}
	for i := first; i < layers; i++ {
		if slices.Contains(list, i) {
			h.refuse("mlp_only_layers", "the first layers")
		} else if dense(i) {
			h.refuse("decoder_sparse_step", "1, or a step that leaves the first layers alone dense")
		}
	}
	if first > 0 && first == layers {
		h.refuse("mlp_only_layers", "fewer than all %d layers, with decoder_sparse_step %d", c.NLayers, step)
	}
	denseFirst(h, c, first)
}, func(c Config, out map[string]any) {
	list := []int{}
	for i := range c.MoE.DenseFirst {
		list = append(list, i)
	}
	out["mlp_only_layers"], out["decoder_sparse_step"] = list, 1
}}

// hfSharedExperts is the rest of DeepSeek-V3's block: sigmoid scores, shared experts and dense first layers.
var hfSharedExperts = hfPart{func(h *hfKeys, c *Config) {
	c.MoE.Score, c.MoE.Shared, c.MoE.Scale = SigmoidScore, h.int("n_shared_experts"), h.float("routed_scaling_factor")
	if c.MoE.Scale <= 0 { // which Config takes for its default
		h.refuse("routed_scaling_factor", "a number above 0")
	}
	if c.MoE.Shared < 0 { // with 0, transformers has empty tensors for them
		h.refuse("n_shared_experts", "at least 0")
	}
	if c.MoE.Experts < 2 {
		h.refuse("n_routed_experts", "at least 2, which transformers needs")
	}
	h.only("n_group", 1)
	h.only("topk_group", 1)
	denseFirst(h, c, h.int("first_k_dense_replace"))
}, func(c Config, out map[string]any) {
	out["n_shared_experts"], out["routed_scaling_factor"], out["first_k_dense_replace"] = c.MoE.Shared, hfFloat(c.MoE.Scale),
		c.MoE.DenseFirst
	out["n_group"], out["topk_group"], out["partial_rotary_factor"] = 1, 1, hfFloat(1)
	out["num_nextn_predict_layers"] = 0
}}
