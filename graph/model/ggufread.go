package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// This file reads models from the metadata of GGUF files.

// FromGGUF reads a model's metadata as llama.cpp does. It returns the naming of the file's tensors. The error is a
// *FieldError. Its field is a key with its name in GGUF, or something that llama.cpp computes in another way.
func FromGGUF(f GGUFFile) (Config, Naming, error) {
	k := &ggufKeys{file: f}
	name, _ := f.Key("general.architecture")
	archs := ggufArchs()
	i := slices.IndexFunc(archs, func(a ggufArch) bool { return a.name == name })
	if i < 0 {
		var names []string
		for _, a := range archs {
			names = append(names, a.name)
		}
		return Config{}, Naming{}, fielderror.New("general.architecture", name, "one of %s", strings.Join(names, ", "))
	}
	a := archs[i]
	k.arch = a.name
	c := Defaults()
	c.TieEmbeddings = !f.Has("output.weight")
	k.sizes(&c)
	k.attention(a, &c)
	if k.int("expert_count", 0) > 0 {
		k.experts(a, &c)
	}
	k.rope(&c)
	k.fixed(a, c)
	a.set(&c)
	if a.name == "glm4moe" && f.Has("blk.0.attn_q_norm.weight") {
		c.Norm.QK = QKHead
	}
	if k.err != nil {
		return Config{}, Naming{}, k.err
	}
	c = c.Canonical()
	if err := c.Validate(); err != nil {
		return Config{}, Naming{}, err
	}
	return c, a.naming(c), a.check(c)
}

// ggufKeys reads an architecture's keys. It keeps the first mistake.
type ggufKeys struct {
	file GGUFFile
	arch string
	err  error
}

// number reads a key. Arrays of one repeated number, one for each layer, are that number.
func (k *ggufKeys) number(key string, absent float64) float64 {
	v, ok := k.file.Key(k.arch + "." + key)
	if !ok {
		if math.IsNaN(absent) {
			k.refuse(key, "", "a number")
		}
		return absent
	}
	switch x := v.(type) {
	case float64:
		return x
	case int64:
		return float64(x)
	case []int64:
		if len(x) > 0 && !slices.ContainsFunc(x, func(n int64) bool { return n != x[0] }) {
			return float64(x[0])
		}
		k.refuse(key, fmt.Sprintf("%d numbers", len(x)), "the same number for every layer")
		return 0
	}
	k.refuse(key, fmt.Sprintf("%T", v), "a number")
	return 0
}

func (k *ggufKeys) int(key string, absent float64) int {
	x := k.number(key, absent)
	if x != math.Trunc(x) || math.Abs(x) > 1<<31 {
		if !math.IsNaN(x) {
			k.refuse(key, x, "an integer of 32 bits")
		}
		return 0
	}
	return int(x)
}

func (k *ggufKeys) refuse(key string, found any, expected string, args ...any) {
	if k.err == nil {
		k.err = fielderror.New(k.arch+"."+key, found, expected, args...)
	}
}

// required is the value of absent keys that files must have.
var required = math.NaN()

func (k *ggufKeys) sizes(c *Config) {
	c.SeqLen, c.DModel, c.NLayers = k.int("context_length", required), k.int("embedding_length", required), k.int("block_count", required)
	c.FFN.DFF, c.NHeads = k.int("feed_forward_length", 0), k.int("attention.head_count", required)
	c.NKVHeads = k.int("attention.head_count_kv", float64(c.NHeads))
	c.Norm.Eps = shortest(k.number("attention.layer_norm_rms_epsilon", required))
	c.Rope.Theta = shortest(k.number("rope.freq_base", 10000))
	tokens, _ := k.file.Key("tokenizer.ggml.tokens")
	list, _ := tokens.([]string)
	if c.VocabSize = k.int("vocab_size", float64(len(list))); len(list) > 0 && len(list) != c.VocabSize {
		k.refuse("vocab_size", c.VocabSize, "%d, the number of tokens", len(list))
	}
	if next := k.int("nextn_predict_layers", 0); next != 0 {
		k.refuse("nextn_predict_layers", next, "0: layers that predict further tokens are not supported")
	}
}

// shortest is the decimal number with the fewest digits that a float32 can stand for.
func shortest(x float64) float64 {
	var out float64
	if _, err := fmt.Sscan(fmt.Sprint(float32(x)), &out); err != nil || float64(float32(x)) != x {
		return x
	}
	return out
}

func (k *ggufKeys) attention(a ggufArch, c *Config) {
	if c.NHeads < 1 {
		k.refuse("attention.head_count", c.NHeads, "at least 1")
		return
	}
	head := k.int("attention.key_length", float64(c.DModel/c.NHeads))
	for _, key := range []string{"attention.value_length", "rope.dimension_count"} {
		if n := k.int(key, float64(head)); n != head {
			k.refuse(key, n, "%d, the width of a head", head)
		}
	}
	c.Attention.HeadDim = head
	if w := k.int("attention.sliding_window", 0); w > 0 && a.window { // other architectures ignore the key
		c.Attention.Window = w
		c.Attention.Pattern = []string{LocalLayer, LocalLayer, LocalLayer, FullLayer}[:min(max(c.NLayers, 1), 4)]
	}
}

func (k *ggufKeys) experts(a ggufArch, c *Config) {
	m := &c.MoE
	*m = MoE{Experts: k.int("expert_count", 0), TopK: k.int("expert_used_count", required), Score: SoftmaxScore, Scale: 1,
		Normalize: a.normalized == 1}
	m.DFF = k.int("expert_feed_forward_length", float64(c.FFN.DFF))
	m.DenseFirst, m.Shared = k.int("leading_dense_block_count", 0), k.int("expert_shared_count", 0)
	if a.normalized == 0 {
		m.Scale = shortest(k.number("expert_weights_scale", 1))
		v, _ := k.file.Key(k.arch + ".expert_weights_norm")
		m.Normalize, _ = v.(bool)
		if g := k.int("expert_gating_func", ggufSigmoid); g != ggufSigmoid {
			k.refuse("expert_gating_func", g, "%d, the sigmoid", ggufSigmoid)
		}
	}
	if groups := k.int("expert_group_count", 0); groups > 1 {
		k.refuse("expert_group_count", groups, "at most 1")
	}
	if m.DenseFirst == 0 {
		c.FFN.DFF = 0
	}
}

// rope reads the scaling of rotary frequencies.
func (k *ggufKeys) rope(c *Config) {
	k.linear(c)
	if !k.file.Has(RopeFactorsTensor) || k.err != nil {
		return
	}
	factors, err := k.file.Float32(RopeFactorsTensor)
	if err != nil {
		k.err = err
		return
	}
	found := fmt.Sprintf("%d factors", len(factors))
	switch {
	case c.Rope.Scaling.Kind != "":
		k.err = fielderror.New(RopeFactorsTensor, found, "none beside %s.rope.scaling.factor", k.arch)
		return
	case 2*len(factors) != c.HeadDim():
		k.err = fielderror.New(RopeFactorsTensor, found, "one for each pair of a head's %d dimensions", c.HeadDim())
		return
	}
	// Files of other programs have the factors alone. All published models share the other numbers.
	s := Scaling{Kind: Llama3Scaling, Low: 1, High: 4, Original: 8192, Factor: shortest(float64(slices.Max(factors)))}
	own := &ggufKeys{file: k.file, arch: "gpupipe"}
	s.Factor, s.Low = shortest(own.number("rope.scaling.factor", s.Factor)), shortest(own.number("rope.scaling.low", s.Low))
	s.High, s.Original = shortest(own.number("rope.scaling.high", s.High)), own.int("rope.scaling.original", float64(s.Original))
	c.Rope.Scaling = s
	want := c.RopeFactors()
	for i, x := range factors {
		if math.Abs(float64(x-want[i])) > 1e-3*math.Abs(float64(want[i])) {
			k.err = fielderror.New(RopeFactorsTensor, found, "those of llama3 scaling by %v of a context of %d", s.Factor, s.Original)
			return
		}
	}
}

// linear reads the divisor of all frequencies, under its new or its old name. A file without rope.scaling.type has
// "linear".
func (k *ggufKeys) linear(c *Config) {
	kind, ok := k.file.Key(k.arch + ".rope.scaling.type")
	if ok && kind != LinearScaling && kind != "none" {
		k.refuse("rope.scaling.type", kind, "none or %s", LinearScaling)
	}
	key := "rope.scaling.factor"
	if _, ok := k.file.Key(k.arch + "." + key); !ok {
		key = "rope.scale_linear"
	}
	if factor := k.number(key, 0); kind != "none" && factor != 0 && factor != 1 {
		c.Rope.Scaling = Scaling{Kind: LinearScaling, Factor: shortest(factor)}
		if c.Attention.Window > 0 {
			c.Rope.Scaling.Layers = FullLayers // llama.cpp's layers with a window have none
		}
	}
}

// ggufNeutral are the keys with which llama.cpp changes the numbers of some architecture, and the values, other than 0,
// false and lists of these, with which they change none. This package reads none of them.
var ggufNeutral = map[string][]any{
	"attention.causal": {true}, "attention.output_scale": {1.0}, "attention.clamp_kqv": nil, "attention.max_alibi_bias": nil,
	"attention.temperature_length": nil, "attention.temperature_scale": nil, "attention.shared_kv_layers": nil,
	"attention.q_lora_rank": nil, "attention.kv_lora_rank": nil, "attention.indexer.head_count": nil, "attention.indexer.top_k": nil,
	"attention.key_length_mla": nil, "attention.value_length_mla": nil, "attention.gate_lora_rank": nil,
	"attn_logit_softcapping": nil, "router_logit_softcapping": nil, "final_logit_softcapping": nil,
	"logit_scale": {1.0}, "residual_scale": {1.0}, "embedding_scale": {1.0}, "use_parallel_residual": nil, "pooling_type": nil,
	"rope.scaling.attn_factor": {1.0}, "rope.scaling.alpha": nil, "rope.scaling.yarn_log_multiplier": nil,
	"rope.scaling.yarn_ext_factor": {-1.0}, "rope.scaling.yarn_attn_factor": {1.0}, "rope.dimension_sections": nil,
	"expert_group_scale": nil, "experts_per_group": nil, "moe_every_n_layers": {1.0}, "interleave_moe_layer_step": {1.0},
	"moe_latent_size":                  nil,
	"expert_chunk_feed_forward_length": nil, "n_deepstack_layers": nil, "swin_norm": nil, "rescale_every_n_layers": nil,
	"full_attention_interval":   {1.0},
	"activation_sparsity_scale": nil, "altup.num_inputs": nil, "embedding_length_per_layer_input": nil, "swiglu_clamp_exp": nil,
	"swiglu_clamp_shexp":  nil,
	"decoder_block_count": nil, "token_shift_count": nil, "ssm.state_size": nil, "ssm.inner_size": nil, "wkv.head_size": nil,
	"shortconv.l_cache": nil,
}

// fixed refuses keys of ggufNeutral, and keys that repeat others, with values that change numbers.
func (k *ggufKeys) fixed(a ggufArch, c Config) {
	if k.err != nil {
		return
	}
	head := float64(c.HeadDim())
	repeated := map[string]float64{"embedding_length_out": float64(c.DModel), "attention.key_length_swa": head,
		"attention.value_length_swa": head,
		"rope.dimension_count_swa":   head, "rope.freq_base_swa": c.Rope.Theta, "attention.scale": 1 / math.Sqrt(head),
		"expert_shared_feed_forward_length": float64(c.MoE.Shared * c.MoE.DFF)}
	for _, key := range slices.Sorted(maps.Keys(repeated)) {
		k.only(key, repeated[key])
	}
	for _, key := range slices.Sorted(maps.Keys(ggufNeutral)) {
		k.only(key, ggufNeutral[key]...)
	}
	if a.normalized != 0 && c.MoE.Experts > 0 { // fixed by the architecture
		k.only("expert_weights_scale", 1.0)
		k.only("expert_weights_norm", a.normalized == 1)
		k.only("expert_gating_func", float64(ggufSoftmax))
	}
	k.windows(c)
}

// only refuses a key's value that is neither 0, false or empty, nor one of others. Where true is one, false is refused.
func (k *ggufKeys) only(key string, others ...any) {
	v, ok := k.file.Key(k.arch + "." + key)
	if !ok || allZero(v) && !slices.Contains(others, any(true)) {
		return
	}
	if n, isInt := v.(int64); isInt {
		v = float64(n)
	}
	if x, isNumber := v.(float64); isNumber {
		for _, o := range others {
			if want, isNumber := o.(float64); isNumber && math.Abs(x-want) <= 1e-6*math.Abs(want) {
				return
			}
		}
	} else if slices.Contains(others, v) {
		return
	}
	expected := "no such key, or 0"
	if len(others) > 0 {
		expected = fielderror.Text(others[0])
	}
	k.refuse(key, v, "%s: gpupipe computes nothing else", expected)
}

// allZero reports whether a value is 0, false, an empty text, or a list of these.
func allZero(v any) bool {
	switch x := v.(type) {
	case []int64:
		return !slices.ContainsFunc(x, func(n int64) bool { return n != 0 })
	case []float64:
		return !slices.ContainsFunc(x, func(n float64) bool { return n != 0 })
	case []bool:
		return !slices.Contains(x, true)
	case []string:
		return len(x) == 0
	}
	return v == any(int64(0)) || v == any(0.0) || v == any(false) || v == any("")
}

// windows refuses windows in other layers than three of four: the key is that number, or has a value for each layer.
func (k *ggufKeys) windows(c Config) {
	const key = "attention.sliding_window_pattern"
	v, ok := k.file.Key(k.arch + "." + key)
	if !ok || c.Attention.Window == 0 {
		return
	}
	same := v == any(int64(4))
	if list, isList := v.([]bool); isList {
		same = len(list) == c.NLayers
		for i, local := range list {
			same = same && local == (i%4 != 3)
		}
	}
	if !same {
		k.refuse(key, fmt.Sprint(v), "4: three of four layers have the window")
	}
}
