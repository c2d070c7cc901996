package model_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// header is the header of a GGUF file, as a reader of files returns its values.
type header struct {
	keys    map[string]any
	tensors map[string]bool
	factors []float32 // of rope_freqs.weight
}

func (h header) Key(name string) (any, bool) {
	v, ok := h.keys[name]
	switch x := v.(type) {
	case uint32:
		return int64(x), true
	case float32:
		return float64(x), true
	}
	return v, ok
}

func (h header) Has(tensor string) bool {
	return h.tensors[tensor] || tensor == model.RopeFactorsTensor && h.factors != nil
}

func (h header) Float32(string) ([]float32, error) { return h.factors, nil }

// headerOf is the header of a model's file. Each element of a parameter is in exactly one place of the file.
func headerOf(t *testing.T, c model.Config) header {
	t.Helper()
	keys, err := c.GGUF()
	require.NoError(t, err)
	h := header{keys, map[string]bool{}, c.RopeFactors()}
	naming, err := c.GGUFNaming()
	require.NoError(t, err)
	for _, p := range c.Parameters() {
		for _, tensor := range naming.Tensors(p) {
			require.False(t, h.tensors[tensor.Name], tensor.Name)
			h.tensors[tensor.Name] = true
			from, to := map[int]bool{}, map[int]bool{}
			for _, piece := range tensor.Pieces {
				for i := range piece.Len {
					from[piece.From+i], to[piece.To+i] = true, true
				}
			}
			assert.Len(t, from, p.Type.Shape.Len(), tensor.Name)
			assert.Len(t, to, p.Type.Shape.Len(), tensor.Name)
		}
	}
	return h
}

// ggufModels are small models of every architecture.
func ggufModels() map[string]model.Config {
	with := func(c model.Config, change func(c *model.Config)) model.Config {
		c.NLayers = 4
		change(&c)
		return c.Canonical()
	}
	return map[string]model.Config{
		"llama": with(small(), func(*model.Config) {}),
		"llama scaled": with(small(), func(c *model.Config) {
			c.TieEmbeddings, c.Rope.Scaling = true, model.Scaling{Kind: model.Llama3Scaling, Factor: 8, Low: 0.5, High: 1.5, Original: 12}
		}),
		"llama linear":  with(small(), func(c *model.Config) { c.Rope.Scaling = model.Scaling{Kind: model.LinearScaling, Factor: 4} }),
		"llama mixture": with(mixture(), func(c *model.Config) { c.MoE.Normalize = true }),
		"llama head":    with(small(), func(c *model.Config) { c.Attention.HeadDim = 6 }),
		"smollm3":       with(small(), func(c *model.Config) { c.Attention.Rope = []int{1, 1, 1, 0} }),
		"qwen3":         with(small(), func(c *model.Config) { c.Norm.QK, c.Attention.HeadDim = model.QKHead, 6 }),
		"qwen3moe":      with(mixture(), func(c *model.Config) { c.Norm.QK, c.MoE.Normalize = model.QKHead, true }),
		"olmo2":         with(small(), func(c *model.Config) { c.Norm.QK, c.Norm.Place, c.TieEmbeddings = model.QKFull, model.NormPost, false }),
		"olmo2 windows": with(small(), func(c *model.Config) {
			c.Norm.QK, c.Norm.Place, c.TieEmbeddings = model.QKFull, model.NormPost, false
			c.Attention.Window, c.Attention.Pattern = 3, []string{"local", "local", "local", "full"}
		}),
		"olmo2 windows linear": with(small(), func(c *model.Config) {
			c.Norm.QK, c.Norm.Place, c.TieEmbeddings = model.QKFull, model.NormPost, false
			c.Attention.Window, c.Attention.Pattern = 3, []string{"local", "local", "local", "full"}
			c.Rope.Scaling = model.Scaling{Kind: model.LinearScaling, Factor: 4, Layers: model.FullLayers}
		}),
		"olmoe": with(mixture(), func(c *model.Config) { c.Norm.QK, c.TieEmbeddings, c.NKVHeads = model.QKFull, false, c.NHeads }),
		"glm4moe dense": with(mixture(), func(c *model.Config) {
			c.TieEmbeddings, c.Norm.QK, c.FFN.DFF = false, model.QKHead, 10
			c.MoE.Score, c.MoE.Shared, c.MoE.Scale, c.MoE.Normalize, c.MoE.DenseFirst = model.SigmoidScore, 2, 2.5, true, 1
		}),
		"glm4moe": with(mixture(), func(c *model.Config) {
			c.MoE.Score, c.MoE.Shared, c.MoE.Scale, c.MoE.Normalize, c.Norm.QK = model.SigmoidScore, 1, 1.25, true, model.QKHead
		}),
	}
}

// The metadata of a GGUF file is read as the model that was written.
func TestGGUF(t *testing.T) {
	for name, c := range ggufModels() {
		require.NoError(t, c.Validate(), name)
		h := headerOf(t, c)
		arch, _, _ := strings.Cut(name, " ")
		assert.Equal(t, arch, h.keys["general.architecture"], name)
		back, _, err := model.FromGGUF(h)
		require.NoError(t, err, name)
		key, want, got := c.Diff(back)
		assert.Empty(t, key, "%s: %v, found %v", name, want, got)
	}
}

// Files of other programs have the divisors of frequencies alone.
func TestGGUFOfLlama3(t *testing.T) {
	c := small()
	c.Attention.HeadDim, c.Rope = 64, model.Rope{Theta: 500000, Scaling: model.Scaling{Kind: model.Llama3Scaling, Factor: 32, Low: 1,
		High: 4, Original: 8192}}
	h := headerOf(t, c)
	for key := range h.keys {
		if strings.HasPrefix(key, "gpupipe.") {
			delete(h.keys, key)
		}
	}
	back, _, err := model.FromGGUF(h)
	require.NoError(t, err)
	key, want, got := c.Canonical().Diff(back)
	assert.Empty(t, key, "%v, found %v", want, got)
	h.factors[20]++
	_, _, err = model.FromGGUF(h)
	assert.ErrorContains(t, err, "rope_freqs.weight: found")
}

// dots1 is read, and written as glm4moe, which computes the same. Its tensors have other names.
func TestGGUFOfDots1(t *testing.T) {
	c := ggufModels()["glm4moe dense"]
	h := headerOf(t, c)
	for key, v := range h.keys {
		if name, ok := strings.CutPrefix(key, "glm4moe."); ok {
			h.keys["dots1."+name] = v
		}
	}
	h.keys["general.architecture"] = "dots1"
	back, naming, err := model.FromGGUF(h)
	require.NoError(t, err)
	assert.True(t, c.Equal(back))
	for _, p := range c.Parameters() {
		if p.Name == "model.layers.1.post_attention_layernorm.weight" {
			assert.Equal(t, "blk.1.ffn_norm.weight", naming.Tensors(p)[0].Name)
		}
	}
}

func TestGGUFRefusals(t *testing.T) {
	for want, change := range map[string]func(c *model.Config){
		"attention.window: found 3, expected none, which llama.cpp's llama has": func(c *model.Config) { c.Attention.Window = 3 },
		"attention.pattern: found": func(c *model.Config) {
			c.Norm.QK, c.Norm.Place, c.Attention.Window, c.Attention.Pattern = model.QKFull, model.NormPost, 3, []string{"local", "full"}
		},
		"attention.rope: found": func(c *model.Config) { c.Attention.Rope = []int{1, 0} },
		"rope.scaling.kind: found": func(c *model.Config) {
			c.Norm.QK, c.Rope.Scaling = model.QKHead, model.Scaling{Kind: model.Llama3Scaling, Factor: 8, Low: 1, High: 4, Original: 64}
		},
		"arch: found \"NanoChatForCausalLM\", expected a model that llama.cpp computes": func(c *model.Config) {
			c.Norm.Weight, c.Norm.Embedding, c.Norm.QK, c.FFN.Kind, c.Logits.Softcap = false, true, model.QKHead, model.ReLU2, 15
			c.TieEmbeddings = false
		},
		"moe.shared: found 0, expected at least 1, which llama.cpp's glm4moe has": func(c *model.Config) {
			*c = ggufModels()["glm4moe"]
			c.MoE.Shared = 0
		},
		"moe.normalize: found true, expected false, which llama.cpp's olmoe has": func(c *model.Config) {
			*c = mixture()
			c.Norm.QK, c.MoE.Normalize, c.NKVHeads = model.QKFull, true, c.NHeads
		},
		"n_kv_heads: found 1, expected n_heads (2), which llama.cpp's olmoe has": func(c *model.Config) {
			*c = mixture()
			c.Norm.QK, c.NHeads, c.NKVHeads = model.QKFull, 2, 1
		},
		"moe.dense_first: found 1": func(c *model.Config) {
			*c = mixture()
			c.Norm.QK, c.MoE.Normalize, c.MoE.DenseFirst, c.FFN.DFF = model.QKHead, true, 1, 12
		},
		"attention.head_dim: found 6": func(c *model.Config) {
			c.Norm.QK, c.Norm.Place, c.Attention.HeadDim = model.QKFull,
				model.NormPost, 6
		},
	} {
		c := small()
		change(&c)
		_, err := c.GGUF()
		assert.ErrorContains(t, err, want)
	}
}

func TestGGUFMistakes(t *testing.T) {
	for want, change := range map[string]func(keys map[string]any){
		`general.architecture: found "gpt2", expected one of llama, smollm3`: func(k map[string]any) { k["general.architecture"] = "gpt2" },
		`llama.block_count: found "", expected a number`:                     func(k map[string]any) { delete(k, "llama.block_count") },
		`llama.block_count: found "string", expected a number`:               func(k map[string]any) { k["llama.block_count"] = "4" },
		`llama.embedding_length: found 0.5, expected an integer`:             func(k map[string]any) { k["llama.embedding_length"] = float32(0.5) },
		`llama.attention.head_count: found 0`:                                func(k map[string]any) { k["llama.attention.head_count"] = uint32(0) },
		`llama.rope.dimension_count: found 2`:                                func(k map[string]any) { k["llama.rope.dimension_count"] = uint32(2) },
		`llama.rope.scaling.type: found "yarn"`:                              func(k map[string]any) { k["llama.rope.scaling.type"] = "yarn" },
		`llama.attention.causal: found false, expected true`:                 func(k map[string]any) { k["llama.attention.causal"] = false },
		`llama.attention.clamp_kqv: found 8, expected no such key, or 0`:     func(k map[string]any) { k["llama.attention.clamp_kqv"] = float32(8) },
		`llama.logit_scale: found 0.5, expected 1`:                           func(k map[string]any) { k["llama.logit_scale"] = float32(0.5) },
		`llama.use_parallel_residual: found true`:                            func(k map[string]any) { k["llama.use_parallel_residual"] = true },
		`llama.final_logit_softcapping: found 30`:                            func(k map[string]any) { k["llama.final_logit_softcapping"] = float32(30) },
		`llama.rope.scaling.attn_factor: found 1.5, expected 1`:              func(k map[string]any) { k["llama.rope.scaling.attn_factor"] = float32(1.5) },
		`llama.rope.dimension_sections: found`:                               func(k map[string]any) { k["llama.rope.dimension_sections"] = []int64{4, 4, 0, 0} },
		`llama.attention.scale: found 0.25`:                                  func(k map[string]any) { k["llama.attention.scale"] = float32(0.25) },
		`llama.attention.head_count_kv: found "2 numbers"`:                   func(k map[string]any) { k["llama.attention.head_count_kv"] = []int64{1, 2} },
		`llama.vocab_size: found`:                                            func(k map[string]any) { k["tokenizer.ggml.tokens"] = []string{"a"} },
		`n_layers: found 1000000`:                                            func(k map[string]any) { k["llama.block_count"] = uint32(1000000) },
	} {
		h := headerOf(t, small())
		change(h.keys)
		_, _, err := model.FromGGUF(h)
		assert.ErrorContains(t, err, want)
	}
}

// The width of a head in a hostile file is compared with the factors that are there before as many are computed.
func TestGGUFRopeFactors(t *testing.T) {
	for _, head := range []uint32{2, 1 << 30} {
		h := headerOf(t, small())
		h.factors = []float32{1, 1, 1}
		for _, key := range []string{"attention.key_length", "attention.value_length", "rope.dimension_count"} {
			h.keys["llama."+key] = head
		}
		_, _, err := model.FromGGUF(h)
		assert.ErrorContains(t, err, fmt.Sprintf(`rope_freqs.weight: found "3 factors", expected one for each pair of a head's %d dimensions`, head))
	}
}

// Files without these keys, or with these values, compute the same in llama.cpp.
func TestGGUFNeutralKeys(t *testing.T) {
	for name, v := range map[string]any{"attention.causal": true, "use_parallel_residual": false, "logit_scale": float32(1),
		"residual_scale": float32(0), "embedding_scale": float32(1),
		"rope.scaling.type": "none", "rope.scale_linear": float32(1), "rope.scaling.factor": float32(0), "rope.scaling.finetuned": true,
		"rope.dimension_sections": []int64{0, 0},
		"tensor_data_layout":      "Meta AI original pth", "attention.sliding_window": uint32(4), "of_another_program": "x"} {
		h := headerOf(t, small())
		h.keys["llama."+name] = v
		c, _, err := model.FromGGUF(h)
		require.NoError(t, err, name)
		key, _, _ := small().Canonical().Diff(c)
		assert.Empty(t, key, name)
	}
}

// The old name and the new one of the divisor of all frequencies, which rope.scaling.type none turns off.
func TestGGUFLinearScaling(t *testing.T) {
	for _, keys := range []map[string]any{{"llama.rope.scale_linear": float32(4)}, {"llama.rope.scaling.factor": float32(4)},
		{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(4), "llama.rope.scale_linear": float32(2)}} {
		h := headerOf(t, small())
		maps.Copy(h.keys, keys)
		c, _, err := model.FromGGUF(h)
		require.NoError(t, err)
		assert.Equal(t, model.Scaling{Kind: model.LinearScaling, Factor: 4}, c.Rope.Scaling)
	}
	h := headerOf(t, small())
	h.keys["llama.rope.scaling.type"], h.keys["llama.rope.scaling.factor"] = "none", float32(4)
	c, _, err := model.FromGGUF(h)
	require.NoError(t, err)
	assert.Equal(t, model.Scaling{}, c.Rope.Scaling)
}

// A mixture's keys that the architecture decides, and the windows of three of four layers.
func TestGGUFKeysOfArchitectures(t *testing.T) {
	for want, x := range map[string]struct {
		model, key string
		value      any
	}{
		"llama.expert_weights_scale: found 2.5, expected 1":     {"llama mixture", "llama.expert_weights_scale", float32(2.5)},
		"olmoe.expert_weights_norm: found true, expected false": {"olmoe", "olmoe.expert_weights_norm", true},
		"qwen3moe.expert_gating_func: found 2, expected 1":      {"qwen3moe", "qwen3moe.expert_gating_func", uint32(2)},
		"olmo2.attention.sliding_window_pattern: found \"2\"":   {"olmo2 windows", "olmo2.attention.sliding_window_pattern", uint32(2)},
		"olmo2.rope.freq_base_swa: found 5, expected 100":       {"olmo2 windows", "olmo2.rope.freq_base_swa", float32(5)},
		"": {"olmo2 windows", "olmo2.attention.sliding_window_pattern", []bool{true, true, true, false}},
	} {
		h := headerOf(t, ggufModels()[x.model])
		h.keys[x.key] = x.value
		_, _, err := model.FromGGUF(h)
		if want == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}
