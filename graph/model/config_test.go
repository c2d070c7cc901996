package model_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Published counts of parameters, and of those that a token uses; tiny's follow from its sizes.
func TestPresetParameterCounts(t *testing.T) {
	want := map[string][2]int64{
		"tiny": {869504}, "smollm2-135m": {134515008}, "smollm2-360m": {361821120}, "smollm3-3b": {3075098624},
		"llama3.2-1b": {1235814400}, "llama3.2-3b": {3212749824}, "llama3.1-8b": {8030261248}, "mistral-7b-v0.1": {7241732096},
		"mixtral-8x7b": {46702792704, 12879925248}, "qwen3-0.6b": {596049920}, "qwen3-1.7b": {1720574976}, "qwen3-4b": {4022468096},
		"qwen3-8b": {8190735360}, "qwen3-30b-a3b": {30532122624, 3353032704}, "olmo2-1b": {1484916736}, "olmo2-7b": {7298617344},
		"olmo2-13b": {13716198400}, "olmo3-7b": {7298011136}, "olmoe-1b-7b": {6919161856, 1282017280},
		"dots1-142b": {142774381696, 14016588928}, "nanochat-d20": {560988160},
	}
	assert.Len(t, model.Presets(), len(want))
	for name, count := range want {
		c, err := model.Preset(name)
		require.NoError(t, err)
		require.NoError(t, c.Validate(), name)
		assert.Equal(t, count[0], c.Count(), name)
		assert.Equal(t, cmp.Or(count[1], count[0]), c.ActiveCount(), name)
	}
	_, err := model.Preset("huge")
	assert.ErrorContains(t, err, `unknown preset "huge", expected one of dots1-142b, llama3.1-8b,`)
}

func TestValidateNamesTheKey(t *testing.T) {
	tiny, err := model.Preset("tiny")
	require.NoError(t, err)
	for want, change := range map[string]func(c *model.Config){
		"arch: found \"gpt9\", expected llama":                             func(c *model.Config) { c.Arch = "gpt9" },
		"d_model: found 130, expected a multiple of n_heads (4)":           func(c *model.Config) { c.DModel = 130 },
		"n_heads: found 4, expected a multiple of n_kv_heads (3)":          func(c *model.Config) { c.NKVHeads = 3 },
		"d_model: found 12, expected an even d_model/n_heads":              func(c *model.Config) { c.DModel = 12 },
		"vocab_size: found 0, expected an integer from 1":                  func(c *model.Config) { c.VocabSize = 0 },
		"vocab_size: found 1, expected at least 2":                         func(c *model.Config) { c.VocabSize = 1 },
		"n_layers: found -1":                                               func(c *model.Config) { c.NLayers = -1 },
		"seq_len: found 1152921504606846976":                               func(c *model.Config) { c.SeqLen = 1 << 60 },
		"rope.theta: found 0":                                              func(c *model.Config) { c.Rope.Theta = 0 },
		"norm.eps: found -1":                                               func(c *model.Config) { c.Norm.Eps = -1 },
		`norm.place: found "behind", expected pre or post or both`:         func(c *model.Config) { c.Norm.Place = "behind" },
		"attention.head_dim: found 7, expected an even number":             func(c *model.Config) { c.Attention.HeadDim = 7 },
		"attention.head_dim: found 258, expected an integer from 0 to 256": func(c *model.Config) { c.Attention.HeadDim = 258 },
		"d_model: found 4096, expected at most 1024 with n_heads (4): a head, d_model/n_heads, has at most 256": func(c *model.Config) { c.DModel = 4096 },
		`attention.pattern: found ["full"], expected none without attention.window`: func(c *model.Config) {
			c.Attention.Pattern = []string{"full"}
		},
		`attention.pattern[1]: found "near", expected local or full`: func(c *model.Config) {
			c.Attention.Window, c.Attention.Pattern = 4, []string{"full", "near"}
		},
		"attention.rope[0]: found 2, expected 1 or 0":               func(c *model.Config) { c.Attention.Rope = []int{2} },
		"attention.rope: found 5, expected at most as many entries": func(c *model.Config) { c.Attention.Rope = make([]int, 5) },
		"moe.top_k: found 2, expected nothing without moe.experts":  func(c *model.Config) { c.MoE.TopK = 2 },
		"moe.balance.proportional: found true, expected false without moe.balance.bias": func(c *model.Config) {
			c.FFN.DFF, c.MoE = 0, model.MoE{Experts: 4, TopK: 2, DFF: 3, Score: model.SigmoidScore, Scale: 1,
				Balance: model.Balance{Proportional: true}}
		},
		"moe.top_k: found 5, expected an integer from 1 to 4": func(c *model.Config) {
			c.MoE = model.MoE{Experts: 4, TopK: 5, DFF: 8, Score: "softmax", Scale: 1}
		},
		"moe.dense_first: found 4, expected an integer from 0 to 3": func(c *model.Config) {
			c.MoE = model.MoE{Experts: 4, TopK: 1, DFF: 8, DenseFirst: 4, Score: "softmax", Scale: 1}
		},
		"attention.pattern: found 5, expected at most as many entries": func(c *model.Config) { // the first of two mistakes, always
			c.Attention = model.Attention{Window: 4, Pattern: slices.Repeat([]string{"full"}, 5), Rope: make([]int, 5)}
		},
		"moe.scale: found 0, expected a number above 0 and at most 1000000": func(c *model.Config) {
			c.MoE, c.FFN.DFF = model.MoE{Experts: 4, TopK: 1, DFF: 8, Score: "softmax"}, 0
		},
		"ffn.d_ff: found 352, expected 0: all layers are mixtures of experts": func(c *model.Config) {
			c.MoE = model.MoE{Experts: 4, TopK: 1, DFF: 8, Score: "softmax", Scale: 1}
		},
		"rope.scaling.low: found 1, expected nothing without rope.scaling.kind": func(c *model.Config) { c.Rope.Scaling.Low = 1 },
		"rope.scaling.high: found 1, expected more than rope.scaling.low (1)": func(c *model.Config) {
			c.Rope.Scaling = model.Scaling{Kind: "llama3", Factor: 8, Low: 1, High: 1, Original: 64}
		},
		"vocab_size: found 16777216, expected parameters that 32 bits can index": func(c *model.Config) {
			c.VocabSize, c.DModel = 1<<24,
				1024
		},
	} {
		c := tiny
		change(&c)
		assert.ErrorContains(t, c.Validate(), want)
	}
}

// field is a key of Config with its value.
type field struct {
	key   string
	value reflect.Value
}

// fields lists the keys of a struct, those of its sections too.
func fields(v reflect.Value, prefix string) (fs []field) {
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		inJSON, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if key != inJSON {
			panic("a field has two names: " + key + " and " + inJSON)
		}
		if v.Field(i).Kind() == reflect.Struct {
			fs = append(fs, fields(v.Field(i), prefix+key+".")...)
		} else {
			fs = append(fs, field{prefix + key, v.Field(i)})
		}
	}
	return fs
}

// another sets a value to another valid one.
func another(t *testing.T, c *model.Config, f field) {
	if names := model.Values()[f.key]; len(names) > 1 {
		f.value.SetString(names[(slices.Index(names, f.value.String())+1)%len(names)])
		return
	}
	switch f.value.Kind() {
	case reflect.Int:
		f.value.SetInt(2 * f.value.Int())
		if c.NKVHeads > c.NHeads || c.HeadDim()%2 != 0 {
			f.value.SetInt(f.value.Int() / 4)
		}
	case reflect.Float64:
		f.value.SetFloat(f.value.Float() / 2)
	case reflect.Bool:
		f.value.SetBool(!f.value.Bool())
	case reflect.Slice:
		if f.value.Len() == 1 {
			f.value.Set(reflect.ValueOf([]int{int(f.value.Index(0).Int()) + 1}))
			return
		}
		reversed := reflect.MakeSlice(f.value.Type(), f.value.Len(), f.value.Len())
		for i := range f.value.Len() {
			reversed.Index(i).Set(f.value.Index(f.value.Len() - 1 - i))
		}
		f.value.Set(reversed)
	default:
		t.Fatalf("%s is a %v: add a case here", f.key, f.value.Kind())
	}
}

// Each key of Config is validated, compared, kept by config.json and, for what is computed, matters. So a new field
// cannot be forgotten in one of these places.
func TestEveryFieldMatters(t *testing.T) {
	dense := func() *model.Config {
		c := small()
		c.VocabSize, c.DModel, c.NHeads, c.NKVHeads = 12, 16, 4, 4
		return &c
	}
	rich := func() *model.Config {
		c := *dense()
		c.NLayers = 3
		c.Attention = model.Attention{HeadDim: 6, Window: 2, Pattern: []string{model.LocalLayer, model.FullLayer}, Rope: []int{1, 0}}
		c.Norm.QK, c.Logits.Softcap = model.QKHead, 4
		c.Rope.Scaling = model.Scaling{Kind: model.Llama3Scaling, Factor: 8, Low: 0.5, High: 3, Original: 12}
		c.MoE = model.MoE{Experts: 4, TopK: 2, DFF: 5, Shared: 1, DenseFirst: 1, Score: model.SoftmaxScore, Scale: 2.5,
			Balance: model.Balance{Bias: 1e-2, Aux: 0.5, Z: 0.25}}
		return &c
	}
	stretched := func() *model.Config {
		c := *rich()
		c.Attention.HeadDim, c.MoE, c.Untrained = 32, model.MoE{}, []int{3}
		c.Rope.Scaling = model.Scaling{Kind: model.YaRNScaling, Factor: 8, Low: 1, High: 32, Original: 600, Attention: 1.5,
			Layers: model.FullLayers}
		return &c
	}
	seen := map[string]bool{}
	for _, base := range []func() *model.Config{dense, rich, stretched} {
		for i, f := range fields(reflect.ValueOf(base()).Elem(), "") {
			fieldMatters(t, base, i, f, seen)
		}
	}
	for _, f := range fields(reflect.ValueOf(dense()).Elem(), "") {
		assert.True(t, seen[f.key] || f.key == "arch" || f.key == "rope.scaling.kind", "give rich a value of %s", f.key)
	}
}

// fieldMatters checks field i of a config, and adds its key to those seen if another valid value changes the model.
func fieldMatters(t *testing.T, base func() *model.Config, i int, f field, seen map[string]bool) {
	t.Helper()
	at := func(c *model.Config) field { return fields(reflect.ValueOf(c).Elem(), "")[i] }
	if f.value.Kind() == reflect.Int || f.value.Kind() == reflect.Float64 {
		for _, x := range []any{-1, 1 << 60} {
			c := base()
			at(c).value.Set(reflect.ValueOf(x).Convert(f.value.Type()))
			var wrong *model.FieldError
			require.ErrorAs(t, c.Validate(), &wrong, "%s %v", f.key, x)
		}
	}
	values := model.Values()[f.key]
	if len(values) == 1 || f.value.Kind() != reflect.Bool && f.value.IsZero() {
		return
	}
	c := base()
	another(t, c, at(c))
	differs, left, right := base().Diff(*c)
	assert.Equal(t, f.key, differs)
	assert.NotEqual(t, left, right, f.key)
	assert.False(t, base().Equal(*c), f.key)
	if c.Validate() != nil {
		return
	}
	seen[f.key] = true
	if c.Exportable() != nil || f.key != "zero_init" { // which no class has
		back, err := model.FromJSON(c.JSON())
		require.NoError(t, err)
		assert.Equal(t, c.Completed(), back, f.key)
	}
	assert.NotEqual(t, computed(t, *base()), computed(t, *c), f.key)
}

// computed is what a model computes, as text: its parameters and the hashes of its programs.
func computed(t *testing.T, c model.Config) string {
	t.Helper()
	var text bytes.Buffer
	for _, p := range c.Parameters() {
		fmt.Fprintln(&text, p)
	}
	for _, build := range []func() (*graph.Graph, error){func() (*graph.Graph, error) { return c.Grad(1, 1, false) }, c.Decode} {
		g, err := build()
		require.NoError(t, err)
		hash, err := graph.Hash(g)
		require.NoError(t, err)
		fmt.Fprintln(&text, hash)
	}
	return text.String()
}

// Keys of earlier versions are read, and a config is read as it was written.
func TestConfigAsJSON(t *testing.T) {
	c := small()
	c.Attention = model.Attention{HeadDim: 6, Window: 3, Pattern: []string{"local", "full"}, Rope: []int{1, 0}}
	c.MoE = model.MoE{Experts: 4, TopK: 2, DFF: 3, Score: "sigmoid", Scale: 2.5, Balance: model.Balance{Bias: 1e-3}}
	text, err := json.Marshal(c)
	require.NoError(t, err)
	var back model.Config
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, c, back)
	old := model.Defaults()
	require.NoError(t, json.Unmarshal([]byte(`{"arch": "llama", "d_ff": 12, "rope_theta": 100, "norm_eps": 0.5, "n_heads": 2}`), &old))
	want := model.Defaults()
	want.FFN.DFF, want.Rope.Theta, want.Norm.Eps, want.NHeads = 12, 100, 0.5, 2
	assert.Equal(t, want, old)
	assert.ErrorContains(t, json.Unmarshal([]byte(`{"d_fff": 12}`), &old), "d_fff")
	assert.ErrorContains(t, json.Unmarshal([]byte(`{"d_ff": "wide"}`), &old), "ffn.d_ff")
}

func TestLayersDiffer(t *testing.T) {
	c := small()
	c.NLayers, c.FFN.DFF = 6, 12
	c.Attention.Window, c.Attention.Pattern, c.Attention.Rope = 4, []string{"local", "local", "full"}, []int{1, 0}
	c.MoE = model.MoE{Experts: 4, TopK: 2, DFF: 3, DenseFirst: 1, Score: "softmax", Scale: 1}
	c.Rope.Scaling = model.Scaling{Kind: model.Llama3Scaling, Factor: 2, Low: 1, High: 2, Original: 8, Layers: model.FullLayers}
	var got []model.Layer
	var attention, feedForward []int // of the first layers that are alike
	for i := range c.NLayers {
		got = append(got, c.Layer(i))
		attention = append(attention, (c.Like(2*i+1)-1)/2)
		feedForward = append(feedForward, (c.Like(2*i+2)-2)/2)
	}
	assert.Equal(t, []model.Layer{{4, true, false, false, 12}, {4, false, false, true, 3}, {0, true, true, true, 3},
		{4, false, false, true, 3}, {4, true, false, true, 3}, {0, false, false, true, 3}}, got)
	assert.Equal(t, []int{0, 1, 2, 1, 0, 5}, attention)
	assert.Equal(t, []int{0, 1, 1, 1, 1, 1}, feedForward)
	assert.Equal(t, 0, c.Like(0))
	assert.Equal(t, 13, c.Like(13))
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

func TestPresetsAsJSON(t *testing.T) {
	for _, name := range model.Presets() {
		c, err := model.Preset(name)
		require.NoError(t, err)
		back, err := model.FromJSON(c.JSON())
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
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 8}, "rope_scaling.low_freq_factor: found 0"},
		{"rope_parameters", map[string]any{"rope_type": "yarn", "rope_theta": 1e4}, "rope_scaling.factor: found 0"},
		{"attention_bias", true, "attention_bias: found true, expected false"},
		{"hidden_act", "gelu", `hidden_act: found "gelu", expected "silu"`},
		{"head_dim", 63, "head_dim: found 63, expected an even number"},
		{"sliding_window", 16, "sliding_window: found 16, expected null, or at least max_position_embeddings"},
		{"rope_parameters", map[string]any{"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor"},
		{"hidden_size", 577, "hidden_size: found 577, expected a multiple of"},
		{"hidden_size", "wide", "hidden_size"},
		{"is_causal", false, "is_causal: found false, expected true"},
		{"per_layer_config", map[string]any{"1": 1}, "per_layer_config: found"},
		{"quantization_config", map[string]any{"bits": 4}, "quantization_config: found"},
		{"attention_chunk_size", 8, "attention_chunk_size: found 8, expected null"},
		{"mlp_bias", true, "mlp_bias: found true, expected false"},
		{"layer_types", []string{"sliding_attention"}, "layer_types: found"},
		{"model_type", "mistral", `architectures: found ["LlamaForCausalLM"], expected MistralForCausalLM, the class of model_type mistral`},
		{"model_type", "granite", "model_type: found \"granite\", expected llama"},
		{"architectures", []string{"LlamaForSequenceClassification"}, "expected LlamaForCausalLM, the class of model_type llama"},
	} {
		_, err := model.FromHuggingFace(change(c.key, c.value))
		assert.ErrorContains(t, err, c.want, c.key)
	}
	_, err := model.FromHuggingFace([]byte(`{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}`))
	assert.ErrorContains(t, err, `architectures: found ["GPT2LMHeadModel"], expected one of LlamaForCausalLM, MistralForCausalLM,`)
	_, err = model.FromHuggingFace([]byte(`[1]`))
	assert.ErrorContains(t, err, "not a JSON object")
	moved := change("rope_parameters", map[string]any{"rope_type": "default", "rope_theta": 5e5})
	got, err := model.FromHuggingFace(moved)
	require.NoError(t, err)
	assert.Equal(t, 5e5, got.Rope.Theta)
}

// Keys that transformers' LlamaConfig does not read, or that change no numbers, change nothing.
func TestHuggingFaceIgnoredKeys(t *testing.T) {
	want, err := model.FromHuggingFace([]byte(smollm2))
	require.NoError(t, err)
	for key, value := range map[string]any{
		"unsloth_fixed": true, "layer_types": []string{"full_attention"}, "num_experts": 8, "attention_multiplier": 0.5, "clip_qkv": 8,
		"n_group":                 4,
		"final_logit_softcapping": 30, "rope_interleaved": true, "use_sliding_window": true, "max_window_layers": 3,
		"sliding_window": 1 << 20,
		"pretraining_tp": 2, "attention_dropout": 0.1, "head_dim": nil, "hidden_act": "swish", "bos_token_id": 5,
		"eos_token_id": []int{1, 2}, "auto_map": map[string]any{"a": "b"},
		"rope_scaling": map[string]any{"type": "default", "rope_theta": 1e5, "finetuned": true, "beta_fast": 32},
	} {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(smollm2), &m))
		m[key] = value
		text, err := json.Marshal(m)
		require.NoError(t, err)
		c, err := model.FromHuggingFace(text)
		require.NoError(t, err, key)
		assert.Equal(t, want, c, key)
	}
}

// Outside of rope_scaling the key comes first, as in transformers.
func TestOuterOriginalContext(t *testing.T) {
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(smollm2), &m))
	m["rope_scaling"] = map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "finetuned": true}
	m["original_max_position_embeddings"] = 256
	text, err := json.Marshal(m)
	require.NoError(t, err)
	c, err := model.FromHuggingFace(text)
	require.NoError(t, err)
	assert.Equal(t, 256, c.Rope.Scaling.Original)
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
