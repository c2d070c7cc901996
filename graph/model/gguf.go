package model

import (
	"fmt"
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

// check refuses features that the class of Transformers has and the architecture of llama.cpp has not.
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
	if err := a.checkScaling(c); err != nil {
		return err
	}
	switch {
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

// checkScaling is check of the scaling of rotary frequencies. llama.cpp scales them linearly in every architecture, but
// not in layers with a window.
func (a ggufArch) checkScaling(c Config) error {
	s := c.Rope.Scaling
	switch {
	case s.Kind == LinearScaling && c.Attention.Window > 0 && s.Layers != FullLayers:
		return fielderror.New("rope.scaling.layers", AllLayers, "%s, which llama.cpp's %s has", FullLayers, a.name)
	case s.Kind == LinearScaling:
		return nil
	case s.Kind != "" && !a.scaling:
		return fielderror.New("rope.scaling.kind", s.Kind, "none or %s, which llama.cpp's %s has", LinearScaling, a.name)
	case s.Kind == YaRNScaling:
		return fielderror.New("rope.scaling.kind", YaRNScaling, "none, %s or %s: files in GGUF have no other yet", LinearScaling,
			Llama3Scaling)
	case s.Layers == FullLayers:
		return fielderror.New("rope.scaling.layers", FullLayers, "%s, which llama.cpp's %s has", AllLayers, a.name)
	}
	return nil
}

// GGUF returns the metadata of the model: its values are texts, uint32, float32 and booleans. The error is a
// *FieldError of the first key that llama.cpp has no architecture for.
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
	switch s := c.Rope.Scaling; s.Kind {
	case LinearScaling:
		out[a.name+".rope.scaling.type"], out[a.name+".rope.scaling.factor"] = LinearScaling, float32(s.Factor)
	case Llama3Scaling:
		out[ggufScalingFactor], out[ggufScalingLow], out[ggufScalingHigh], out[ggufScalingOriginal] = float32(s.Factor), float32(s.Low),
			float32(s.High), uint32(s.Original)
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

// The values of expert_gating_func.
const (
	ggufSoftmax = 1
	ggufSigmoid = 2
)

// GGUFNaming is how a GGUF file names and cuts the parameters. The model must have GGUF metadata.
func (c Config) GGUFNaming() (Naming, error) {
	a, err := ggufArchOf(c)
	return a.naming(c), err
}

func (a ggufArch) naming(c Config) Naming {
	return Naming{gguf: &a, headDim: c.HeadDim(), tied: c.TieEmbeddings}
}

// ggufTensors lists the tensors with the elements of a parameter. They are whole, except for the order of rows.
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

// RopeFactors are the values of RopeFactorsTensor [head_dim/2]; nil without scaling, or with a scaling that keys of the
// metadata describe.
func (c Config) RopeFactors() []float32 {
	s := c.Rope.Scaling
	if s.Kind == "" || s.Kind == LinearScaling {
		return nil
	}
	return op.RoPEFactors(c.Rope.Theta, c.HeadDim(), s.table())
}
