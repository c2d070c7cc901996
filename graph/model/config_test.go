package model_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The counts that Hugging Face publishes for SmolLM2; tiny's follows from its sizes.
func TestPresetParameterCounts(t *testing.T) {
	want := map[string]int64{"tiny": 869504, "smollm2-135m": 134515008, "smollm2-360m": 361821120}
	assert.Len(t, model.Presets(), len(want))
	for name, count := range want {
		c, err := model.Preset(name)
		require.NoError(t, err)
		require.NoError(t, c.Validate())
		assert.Equal(t, count, c.Count(), name)
	}
	_, err := model.Preset("huge")
	assert.ErrorContains(t, err, `unknown preset "huge", expected one of smollm2-135m, smollm2-360m, tiny`)
}

func TestValidateNamesTheKey(t *testing.T) {
	tiny, err := model.Preset("tiny")
	require.NoError(t, err)
	for want, change := range map[string]func(c *model.Config){
		"arch: found \"gpt9\", expected llama":                                   func(c *model.Config) { c.Arch = "gpt9" },
		"d_model: found 130, expected a multiple of n_heads (4)":                 func(c *model.Config) { c.DModel = 130 },
		"n_heads: found 4, expected a multiple of n_kv_heads (3)":                func(c *model.Config) { c.NKVHeads = 3 },
		"d_model: found 12, expected an even d_model/n_heads":                    func(c *model.Config) { c.DModel = 12 },
		"vocab_size: found 0, expected an integer from 1":                        func(c *model.Config) { c.VocabSize = 0 },
		"vocab_size: found 1, expected at least 2":                               func(c *model.Config) { c.VocabSize = 1 },
		"n_layers: found -1":                                                     func(c *model.Config) { c.NLayers = -1 },
		"seq_len: found 1152921504606846976":                                     func(c *model.Config) { c.SeqLen = 1 << 60 },
		"rope_theta: found 0":                                                    func(c *model.Config) { c.RopeTheta = 0 },
		"norm_eps: found -1":                                                     func(c *model.Config) { c.NormEps = -1 },
		"vocab_size: found 16777216, expected parameters that 32 bits can index": func(c *model.Config) { c.VocabSize, c.DModel = 1<<24, 1024 },
	} {
		c := tiny
		change(&c)
		assert.ErrorContains(t, c.Validate(), want)
	}
}

// changed returns a config in which one field has another valid value.
func changed(t *testing.T, c model.Config, field int) model.Config {
	f := reflect.ValueOf(&c).Elem().Field(field)
	switch f.Kind() {
	case reflect.Int:
		f.SetInt(2 * f.Int())
		if c.NKVHeads > c.NHeads || c.HeadDim()%2 != 0 {
			f.SetInt(f.Int() / 4)
		}
	case reflect.Float64:
		f.SetFloat(f.Float() / 2)
	case reflect.Bool:
		f.SetBool(!f.Bool())
	default:
		t.Fatalf("field %d is a %v: add a case here", field, f.Kind())
	}
	require.NoError(t, c.Validate())
	return c
}

// Each field of Config is validated, compared, kept by config.json and, for what is computed, matters. So a new field
// cannot be forgotten in one of these places.
func TestEveryFieldMatters(t *testing.T) {
	base := model.Config{Arch: "llama", VocabSize: 12, DModel: 16, NLayers: 2, NHeads: 4, NKVHeads: 4, DFF: 12, SeqLen: 6, RopeTheta: 100, NormEps: 1e-5}
	fields := reflect.TypeFor[model.Config]()
	graphs := func(c model.Config) []byte {
		var text bytes.Buffer
		for _, build := range []func() (*graph.Graph, error){func() (*graph.Graph, error) { return c.Grad(1, 1, false) }, c.Decode} {
			g, err := build()
			require.NoError(t, err)
			require.NoError(t, graph.Encode(&text, g))
		}
		return text.Bytes()
	}
	for i := range fields.NumField() {
		f := fields.Field(i)
		key := f.Tag.Get("yaml")
		assert.Equal(t, f.Tag.Get("json"), key, f.Name)
		if f.Type.Kind() == reflect.Int || f.Type.Kind() == reflect.Float64 {
			for _, x := range []any{-1, 1 << 60} {
				c := base
				reflect.ValueOf(&c).Elem().Field(i).Set(reflect.ValueOf(x).Convert(f.Type))
				assert.ErrorAs(t, c.Validate(), new(*model.FieldError), "%s %v", f.Name, x)
			}
		}
		if f.Name == "Arch" {
			continue // see TestEveryArchitecture
		}
		require.False(t, f.Type.Kind() != reflect.Bool && reflect.ValueOf(base).Field(i).IsZero(), "give base a value of %s", f.Name)
		c := changed(t, base, i)
		differs, left, right := base.Diff(c)
		assert.Equal(t, key, differs)
		assert.NotEqual(t, left, right, f.Name)
		back, err := model.FromHuggingFace(c.HuggingFace())
		require.NoError(t, err)
		assert.Equal(t, c, back, f.Name)
		assert.NotEqual(t, graphs(base), graphs(c), f.Name)
	}
}

// architectures are small models, one of each architecture.
func architectures() (cs []model.Config) {
	for _, arch := range model.Architectures() {
		c := small()
		c.Arch = arch
		cs = append(cs, c)
	}
	return cs
}

// Each architecture is kept by config.json, decodes as it trains, and has the gradients of its loss for all of its
// parameters.
func TestEveryArchitecture(t *testing.T) {
	for _, c := range architectures() {
		require.NoError(t, c.Validate())
		back, err := model.FromHuggingFace(c.HuggingFace())
		require.NoError(t, err)
		assert.Equal(t, c, back)
		decodeAgrees(t, c)
		for _, c.TieEmbeddings = range []bool{false, true} {
			gradientsAreThoseOfTheLoss(t, c, model.StageOptions{Batch: 2, Microbatches: 1})
			everyParameterIsTrained(t, c)
		}
	}
}

// everyParameterIsTrained checks that training reads each listed parameter and stores its gradient.
func everyParameterIsTrained(t *testing.T, c model.Config) {
	t.Helper()
	g, err := c.Grad(1, 1, false)
	require.NoError(t, err)
	read, assigned := map[string]bool{}, map[string]bool{}
	for _, n := range g.Nodes {
		for _, v := range n.Inputs {
			if s, ok := v.Node.Op.(*graph.Variable); ok {
				read[s.ID] = true
			}
		}
	}
	for _, a := range g.Assigns {
		assigned[a.Variable.Node.Op.(graph.Source).Label()] = true
	}
	for _, p := range c.Parameters() {
		assert.True(t, read[p.Name], "%s is not read", p.Name)
		for _, name := range c.Gradients(p.Name) {
			assert.True(t, assigned[name], "%s is not stored", name)
		}
	}
}

func TestHuggingFaceRoundTrip(t *testing.T) {
	for _, name := range model.Presets() {
		c, err := model.Preset(name)
		require.NoError(t, err)
		back, err := model.FromHuggingFace(c.HuggingFace())
		require.NoError(t, err)
		assert.Equal(t, c, back)
	}
}

// The published config of SmolLM2-135M, with the keys that transformers adds over time.
const smollm2 = `{"_name_or_path": "x", "architectures": ["LlamaForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
 "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
 "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
 "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false,
 "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "transformers.js_config": {"kv_cache_dtype": {}}, "transformers_version": "4.40.1", "use_cache": true, "vocab_size": 49152}`

func TestHuggingFacePublishedConfig(t *testing.T) {
	want, err := model.Preset("smollm2-135m")
	require.NoError(t, err)
	c, err := model.FromHuggingFace([]byte(smollm2))
	require.NoError(t, err)
	assert.Equal(t, want, c)
}

func TestHuggingFaceRefusals(t *testing.T) {
	change := func(key string, value any) []byte {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(smollm2), &m))
		m[key] = value
		out, err := json.Marshal(m)
		require.NoError(t, err)
		return out
	}
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 8}, "rope_scaling: found"},
		{"rope_parameters", map[string]any{"rope_type": "yarn", "rope_theta": 1e4}, `rope_parameters.rope_type: found "yarn"`},
		{"attention_bias", true, "attention_bias: found true, expected false"},
		{"hidden_act", "gelu", `hidden_act: found "gelu", expected "silu"`},
		{"head_dim", 128, "head_dim: found 128, expected hidden_size/num_attention_heads = 64"},
		{"hidden_size", 577, "hidden_size: found 577, expected a multiple of"},
		{"hidden_size", "wide", "hidden_size"},
		{"num_experts", 8, "num_experts: found 8, expected no such key"},
	} {
		_, err := model.FromHuggingFace(change(c.key, c.value))
		assert.ErrorContains(t, err, c.want, c.key)
	}
	_, err := model.FromHuggingFace([]byte(`{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}`))
	assert.ErrorContains(t, err, `architectures: found ["GPT2LMHeadModel"], expected LlamaForCausalLM`)
	_, err = model.FromHuggingFace([]byte(`[1]`))
	assert.ErrorContains(t, err, "not a JSON object")
	moved := change("rope_parameters", map[string]any{"rope_type": "default", "rope_theta": 5e5})
	got, err := model.FromHuggingFace(moved)
	require.NoError(t, err)
	assert.Equal(t, 5e5, got.RopeTheta)
}

func TestParametersHaveHuggingFaceNamesAndLayout(t *testing.T) {
	c, err := model.Preset("smollm2-135m")
	require.NoError(t, err)
	shapes := map[string][]int{}
	for _, p := range c.Parameters() {
		assert.NotContains(t, shapes, p.Name)
		shapes[p.Name] = p.Type.Shape
	}
	assert.Len(t, shapes, 2+9*30)
	assert.Equal(t, []int{49152, 576}, shapes["model.embed_tokens.weight"])
	assert.Equal(t, []int{192, 576}, shapes["model.layers.29.self_attn.k_proj.weight"])
	assert.Equal(t, []int{576, 1536}, shapes["model.layers.0.mlp.down_proj.weight"])
	assert.Equal(t, []int{576}, shapes["model.layers.7.post_attention_layernorm.weight"])
	assert.NotContains(t, shapes, "lm_head.weight", "tied")
}
