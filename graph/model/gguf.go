package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// This file maps models to the architectures of llama.cpp and back: keys of GGUF's metadata, and names of tensors.

// GGUFFile is the header of a GGUF file.
type GGUFFile interface {
	// Key returns a value of the metadata. Integers are int64, other numbers float64.
	Key(name string) (any, bool)
	// Has reports whether there is a tensor of this name. Float32 reads it.
	Has(tensor string) bool
	Float32(tensor string) ([]float32, error)
}

// RopeFactorsTensor is the tensor of a GGUF file that divides the rotary frequencies. It is no parameter.
const RopeFactorsTensor = "rope_freqs.weight"

// Keys of this program alone: llama.cpp has only the factors that follow from the scaling.
const (
	ggufScalingFactor   = "gpupipe.rope.scaling.factor"
	ggufScalingLow      = "gpupipe.rope.scaling.low"
	ggufScalingHigh     = "gpupipe.rope.scaling.high"
	ggufScalingOriginal = "gpupipe.rope.scaling.original"
)

// ggufArch is an architecture of llama.cpp.
type ggufArch struct {
	name        string
	classes     []string // of Transformers
	interleaved bool     // rotates neighboring elements; queries' and keys' rows are exchanged accordingly
	scaling     bool     // reads RopeFactorsTensor
	derivedHead bool     // heads have d_model / n_heads
	ownHead     bool     // has no tied embeddings: the head's tensor is written although it is the embedding
	window      bool     // three of four layers may have a window
	normalized  int      // of experts' weights: 1 always, -1 never, 0 as a key says
	set         func(c *Config)
	names       map[string]string // of tensors in layers, where they differ from ggufNames
}

func ggufArchs() []ggufArch {
	postNorm := func(c *Config) { c.Norm.QK, c.Norm.Place = QKFull, NormPost }
	headNorm := func(c *Config) { c.Norm.QK = QKHead }
	return []ggufArch{
		{name: "llama", classes: []string{"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"}, interleaved: true, scaling: true, normalized: 1,
			set: func(*Config) {}},
		{name: "smollm3", classes: []string{"SmolLM3ForCausalLM"}, interleaved: true, set: func(c *Config) {
			c.Attention.Rope = []int{1, 1, 1, 0}[:min(max(c.NLayers, 1), 4)]
		}},
		{name: "qwen3", classes: []string{"Qwen3ForCausalLM"}, set: headNorm},
		{name: "qwen3moe", classes: []string{"Qwen3MoeForCausalLM"}, normalized: 1, set: headNorm},
		{name: "olmo2", classes: []string{"Olmo2ForCausalLM", "Olmo3ForCausalLM"}, derivedHead: true, ownHead: true, window: true, set: postNorm,
			names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
		{name: "olmoe", classes: []string{"OlmoeForCausalLM"}, derivedHead: true, ownHead: true, normalized: -1, set: func(c *Config) { c.Norm.QK = QKFull }},
		{name: "dots1", classes: []string{"Dots1ForCausalLM"}, ownHead: true, set: func(c *Config) { c.Norm.QK, c.MoE.Score = QKHead, SigmoidScore }},
		{name: "glm4moe", classes: []string{"Glm4MoeForCausalLM"}, set: func(c *Config) { c.MoE.Score = SigmoidScore },
			names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
	}
}

// ggufNames are the names of a layer's tensors.
var ggufNames = map[string]string{
	"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
	"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
	"post_attention_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
	"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", routerName: "ffn_gate_inp",
	expertsPrefix + ".gate_proj": "ffn_gate_exps", expertsPrefix + ".up_proj": "ffn_up_exps", expertsPrefix + ".down_proj": "ffn_down_exps",
	sharedPrefix + ".gate_proj": "ffn_gate_shexp", sharedPrefix + ".up_proj": "ffn_up_shexp", sharedPrefix + ".down_proj": "ffn_down_shexp",
}

// ggufArchOf returns the architecture that computes the model. The error is a *FieldError of the first key in the way.
func ggufArchOf(c Config) (ggufArch, error) {
	class, err := hfClassOf(c)
	if err != nil {
		return ggufArch{}, err
	}
	archs := ggufArchs()
	i := slices.IndexFunc(archs, func(a ggufArch) bool { return slices.Contains(a.classes, class.name) })
	if i < 0 {
		return ggufArch{}, fielderror.New("arch", class.name, "a model that llama.cpp computes")
	}
	return archs[i], archs[i].check(c)
}

// check refuses what the class of Transformers has and the architecture has not.
func (a ggufArch) check(c Config) error {
	for i := range c.NLayers {
		local := c.Layer(i).Window > 0
		if !a.window && local {
			return fielderror.New("attention.window", c.Attention.Window, "none, which llama.cpp's %s has", a.name)
		}
		if a.window && c.Attention.Window > 0 && c.Attention.local(i) != (i%4 != 3) {
			return fielderror.New("attention.pattern", c.Attention.Pattern, "[local, local, local, full], which llama.cpp's %s has", a.name)
		}
		if a.name == "smollm3" && c.Layer(i).Rope != (i%4 != 3) {
			return fielderror.New("attention.rope", c.Attention.Rope, "[1, 1, 1, 0], which llama.cpp's %s has", a.name)
		}
	}
	switch {
	case c.Rope.Scaling.Kind != "" && !a.scaling:
		return fielderror.New("rope.scaling.kind", c.Rope.Scaling.Kind, "none, which llama.cpp's %s has", a.name)
	case c.Rope.Scaling.Kind == YaRNScaling:
		return fielderror.New("rope.scaling.kind", YaRNScaling, "none or %s: files in GGUF have no other yet", Llama3Scaling)
	case c.Rope.Scaling.Layers == FullLayers:
		return fielderror.New("rope.scaling.layers", FullLayers, "%s, which llama.cpp's %s has", AllLayers, a.name)
	case a.derivedHead && c.HeadDim()*c.NHeads != c.DModel:
		return fielderror.New("attention.head_dim", c.HeadDim(), "d_model/n_heads, which llama.cpp's %s has", a.name)
	case a.name == "olmoe" && c.NKVHeads != c.NHeads:
		return fielderror.New("n_kv_heads", c.NKVHeads, "n_heads (%d), which llama.cpp's %s has", c.NHeads, a.name)
	case c.MoE.Score == SigmoidScore && c.MoE.Shared == 0:
		return fielderror.New("moe.shared", 0, "at least 1, which llama.cpp's %s has", a.name)
	case a.normalized == 1 && c.MoE.Experts > 0 && !c.MoE.Normalize, a.normalized == -1 && c.MoE.Normalize:
		return fielderror.New("moe.normalize", c.MoE.Normalize, "%t, which llama.cpp's %s has", !c.MoE.Normalize, a.name)
	}
	return nil
}

// GGUF returns the metadata of the model: its values are texts, uint32, float32 and booleans. The error is a *FieldError
// of the first key that llama.cpp has no architecture for.
func (c Config) GGUF() (map[string]any, error) {
	a, err := ggufArchOf(c)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"general.architecture": a.name}
	set := func(key string, n int) { out[a.name+"."+key] = uint32(n) }
	set("vocab_size", c.VocabSize)
	set("context_length", c.SeqLen)
	set("embedding_length", c.DModel)
	set("block_count", c.NLayers)
	set("feed_forward_length", c.FFN.DFF)
	set("attention.head_count", c.NHeads)
	set("attention.head_count_kv", c.NKVHeads)
	set("attention.key_length", c.HeadDim())
	set("attention.value_length", c.HeadDim())
	set("rope.dimension_count", c.HeadDim())
	out[a.name+".attention.layer_norm_rms_epsilon"], out[a.name+".rope.freq_base"] = float32(c.Norm.Eps), float32(c.Rope.Theta)
	if a.window && c.Attention.Window > 0 {
		set("attention.sliding_window", c.Attention.Window)
	}
	if s := c.Rope.Scaling; s.Kind != "" {
		out[ggufScalingFactor], out[ggufScalingLow], out[ggufScalingHigh], out[ggufScalingOriginal] = float32(s.Factor), float32(s.Low), float32(s.High), uint32(s.Original)
	}
	if c.MoE.Experts == 0 {
		return out, nil
	}
	set("expert_count", c.MoE.Experts)
	set("expert_used_count", c.MoE.TopK)
	set("expert_feed_forward_length", c.MoE.DFF)
	if c.FFN.DFF == 0 {
		set("feed_forward_length", c.MoE.DFF)
	}
	if c.MoE.Score == SigmoidScore {
		set("expert_shared_count", c.MoE.Shared)
		set("leading_dense_block_count", c.MoE.DenseFirst)
		set("expert_gating_func", ggufSigmoid)
		out[a.name+".expert_weights_scale"], out[a.name+".expert_weights_norm"] = float32(c.MoE.Scale), c.MoE.Normalize
	} else if c.MoE.DenseFirst > 0 {
		return nil, fielderror.New("moe.dense_first", c.MoE.DenseFirst, "0, which llama.cpp's %s has", a.name)
	}
	return out, nil
}

// ggufSigmoid is the value of expert_gating_func for sigmoid scores.
const ggufSigmoid = 2

// GGUFNaming is how a GGUF file names and cuts the parameters. The model must have GGUF metadata.
func (c Config) GGUFNaming() (Naming, error) {
	a, err := ggufArchOf(c)
	return a.naming(c), err
}

func (a ggufArch) naming(c Config) Naming {
	return Naming{gguf: &a, headDim: c.HeadDim(), tied: c.TieEmbeddings}
}

// ggufTensors lists the tensors with the elements of a parameter. They are whole, but for the order of rows.
func (n Naming) ggufTensors(p Parameter) []Tensor {
	switch p.Name {
	case embedName:
		ts := []Tensor{whole("token_embd.weight", p.Type.Shape)}
		if n.tied && n.gguf.ownHead {
			ts = append(ts, whole("output.weight", p.Type.Shape))
		}
		return ts
	case normName:
		return []Tensor{whole("output_norm.weight", p.Type.Shape)}
	case headName:
		return []Tensor{whole("output.weight", p.Type.Shape)}
	}
	layer, own, _ := strings.Cut(strings.TrimPrefix(p.Name, "model.layers."), ".")
	name := "blk." + layer + "."
	if own == biasName {
		return []Tensor{whole(name+"exp_probs_b.bias", p.Type.Shape)}
	}
	own = strings.TrimSuffix(own, ".weight")
	theirs, ok := n.gguf.names[own]
	if !ok {
		theirs = ggufNames[own]
	}
	if theirs == "" {
		panic(fmt.Sprintf("model: %s has no name in GGUF", p.Name))
	}
	t := whole(name+theirs+".weight", p.Type.Shape)
	if n.gguf.interleaved && (theirs == "attn_q" || theirs == "attn_k") {
		t.Pieces = interleavedRows(p.Type.Shape, n.headDim)
	}
	return []Tensor{t}
}

// interleavedRows lets the rows of a head's halves alternate.
func interleavedRows(s graph.Shape, headDim int) (ps []Piece) {
	half, width := headDim/2, s[1]
	for head := 0; head < s[0]; head += headDim {
		for i := range headDim {
			ps = append(ps, Piece{(head + i) * width, (head + i%2*half + i/2) * width, width})
		}
	}
	return ps
}

// RopeFactors are the values of RopeFactorsTensor [head_dim/2]; nil without scaling.
func (c Config) RopeFactors() []float32 {
	s := c.Rope.Scaling
	if s.Kind == "" {
		return nil
	}
	return op.RoPEFactors(c.Rope.Theta, c.HeadDim(), s.table())
}

// FromGGUF reads a model's metadata as llama.cpp does. The naming is that of the file. The error is a *FieldError of a key with its name in GGUF, or of what
// llama.cpp computes otherwise.
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
	*m = MoE{Experts: k.int("expert_count", 0), TopK: k.int("expert_used_count", required), Score: SoftmaxScore, Scale: 1, Normalize: a.normalized == 1}
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
	if kind, ok := k.file.Key(k.arch + ".rope.scaling.type"); ok && kind != "none" && (kind != "linear" || k.number("rope.scaling.factor", 1) != 1) {
		k.refuse("rope.scaling.type", kind, "none")
	}
	if !k.file.Has(RopeFactorsTensor) || k.err != nil {
		return
	}
	factors, err := k.file.Float32(RopeFactorsTensor)
	if err != nil {
		k.err = err
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
		if len(factors) != len(want) || math.Abs(float64(x-want[i])) > 1e-3*math.Abs(float64(want[i])) {
			k.err = fielderror.New(RopeFactorsTensor, fmt.Sprintf("%d factors", len(factors)), "those of llama3 scaling by %v of a context of %d", s.Factor, s.Original)
			return
		}
	}
}
