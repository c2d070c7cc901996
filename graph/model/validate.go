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

// The most layers of a model, experts of a layer, and columns of a feed-forward layer.
const (
	maxLayers  = 1 << 12
	maxExperts = 1 << 12
	maxWidth   = 1 << 22
)

// bound is the range of an integer.
type bound struct {
	key                string
	value, least, most int
}

// bounds are the ranges of sizes. The upper ones keep products of sizes far from overflow.
func (c Config) bounds() []bound {
	bs := []bound{
		{"vocab_size", c.VocabSize, 1, 1 << 24}, {"d_model", c.DModel, 1, 1 << 20}, {"n_layers", c.NLayers, 1, maxLayers},
		{"n_heads", c.NHeads, 1, 1 << 12}, {"n_kv_heads", c.NKVHeads, 1, 1 << 12}, {"ffn.d_ff", c.FFN.DFF, 1, maxWidth},
		{"seq_len", c.SeqLen, 1, 1 << 24}, {"attention.head_dim", c.Attention.HeadDim, 0, op.MaxHeadDim},
		{"attention.window", c.Attention.Window, 0, 1 << 24}, {"moe.experts", c.MoE.Experts, 0, maxExperts},
	}
	if m := c.MoE; m.Experts > 0 {
		bs = append(bs, bound{"moe.top_k", m.TopK, 1, m.Experts}, bound{"moe.d_ff", m.DFF, 1, maxWidth},
			bound{"moe.shared", m.Shared, 0, 1 << 12}, bound{"moe.dense_first", m.DenseFirst, 0, c.NLayers - 1})
		if m.DenseFirst == 0 {
			bs = slices.DeleteFunc(bs, func(b bound) bool { return b.key == "ffn.d_ff" })
		}
	}
	return bs
}

// Validate refuses invalid values. The error is a *FieldError.
func (c Config) Validate() error {
	for _, s := range c.bounds() {
		if s.value < s.least || s.value > s.most {
			return fielderror.New(s.key, s.value, "an integer from %d to %d", s.least, s.most)
		}
	}
	for _, check := range []func() error{c.validateNames, c.validateShape, c.validateAttention, c.validateMoE, c.validateNumbers} {
		if err := check(); err != nil {
			return err
		}
	}
	for _, p := range c.Parameters() {
		if err := p.Type.Shape.Check(); err != nil {
			key, value := c.largest(p.Type.Shape)
			return fielderror.New(key, value, "parameters that 32 bits can index: %s: %v", p.Name, err)
		}
	}
	return nil
}

// largest is the largest size that is an axis of a shape.
func (c Config) largest(s graph.Shape) (key string, value int) {
	key, value = "d_model", c.DModel
	for _, b := range []bound{{key: "vocab_size", value: c.VocabSize}, {key: "ffn.d_ff", value: c.FFN.DFF},
		{key: "moe.d_ff", value: c.MoE.DFF}} {
		if b.value > value && slices.Contains(s, b.value) {
			key, value = b.key, b.value
		}
	}
	return key, value
}

// validateNames refuses texts that are none of a key's values.
func (c Config) validateNames() error {
	values := Values()
	for _, s := range []struct {
		key, value string
		optional   bool
	}{
		{"arch", c.Arch, false}, {"norm.place", c.Norm.Place, false}, {"norm.qk", c.Norm.QK, false}, {"ffn.kind", c.FFN.Kind, false},
		{"moe.score", c.MoE.Score, c.MoE.Experts == 0}, {"rope.scaling.kind", c.Rope.Scaling.Kind, true},
		{"rope.scaling.layers", c.Rope.Scaling.Layers, true},
	} {
		if !slices.Contains(values[s.key], s.value) && !(s.optional && s.value == "") {
			return fielderror.New(s.key, s.value, "%s", strings.Join(values[s.key], " or "))
		}
	}
	return nil
}

func (c Config) validateShape() error {
	for i, id := range c.Untrained {
		if id < 0 || id >= c.VocabSize || len(c.Untrained) > 16 {
			return fielderror.New(fmt.Sprintf("untrained[%d]", i), id, "at most 16 tokens from 0 to %d", c.VocabSize-1)
		}
	}
	switch {
	case c.Norm.UnitOffset && !c.Norm.Weight:
		return fielderror.New("norm.unit_offset", true, "false without norm.weight")
	case !c.Norm.QKWeight && (c.Norm.QK == QKNone || !c.Norm.Weight):
		return fielderror.New("norm.qk_weight", false, "true where norms of queries and keys have no weights anyway")
	case c.VocabSize < 2:
		return fielderror.New("vocab_size", c.VocabSize, "at least 2")
	case c.NHeads%c.NKVHeads != 0:
		return fielderror.New("n_heads", c.NHeads, "a multiple of n_kv_heads (%d)", c.NKVHeads)
	case c.Attention.HeadDim%2 != 0:
		return fielderror.New("attention.head_dim", c.Attention.HeadDim, "an even number, since rotary positions turn pairs")
	case c.Attention.HeadDim > 0:
		return nil
	case c.DModel%c.NHeads != 0:
		return fielderror.New("d_model", c.DModel, "a multiple of n_heads (%d)", c.NHeads)
	case c.HeadDim() > op.MaxHeadDim:
		return fielderror.New("d_model", c.DModel, "at most %d with n_heads (%d): a head, d_model/n_heads, has at most %d",
			c.NHeads*op.MaxHeadDim, c.NHeads, op.MaxHeadDim)
	case c.HeadDim()%2 != 0:
		return fielderror.New("d_model", c.DModel, "an even d_model/n_heads, since rotary positions turn pairs; found %d/%d = %d",
			c.DModel, c.NHeads, c.HeadDim())
	}
	return nil
}

func (c Config) validateAttention() error {
	a := c.Attention
	if len(a.Pattern) > 0 && a.Window == 0 {
		return fielderror.New("attention.pattern", a.Pattern, "none without attention.window")
	}
	for i, kind := range a.Pattern {
		if kind != LocalLayer && kind != FullLayer {
			return fielderror.New(fmt.Sprintf("attention.pattern[%d]", i), kind, "%s or %s", LocalLayer, FullLayer)
		}
	}
	for i, on := range a.Rope {
		if on != 0 && on != 1 {
			return fielderror.New(fmt.Sprintf("attention.rope[%d]", i), on, "1 or 0")
		}
	}
	const most = "at most as many entries as there are layers, %d"
	if len(a.Pattern) > c.NLayers {
		return fielderror.New("attention.pattern", len(a.Pattern), most, c.NLayers)
	}
	if len(a.Rope) > c.NLayers {
		return fielderror.New("attention.rope", len(a.Rope), most, c.NLayers)
	}
	return nil
}

func (c Config) validateMoE() error {
	if c.MoE.Experts > 0 {
		if c.MoE.DenseFirst == 0 && c.FFN.DFF != 0 {
			return fielderror.New("ffn.d_ff", c.FFN.DFF, "0: all layers are mixtures of experts, of which moe.d_ff is the width")
		}
		if b := c.MoE.Balance; b.Proportional && b.Bias == 0 {
			return fielderror.New("moe.balance.proportional", true, "false without moe.balance.bias")
		}
		return nil
	}
	if key, found, _ := diffSection("moe", c.MoE, MoE{}); key != "" {
		return fielderror.New(key, found, "nothing without moe.experts")
	}
	return nil
}

func (c Config) validateNumbers() error {
	s := c.Rope.Scaling
	if s.Kind == "" {
		if key, found, _ := diffSection("rope.scaling", s, Scaling{}); key != "" {
			return fielderror.New(key, found, "nothing without rope.scaling.kind")
		}
	}
	if s.Kind == LinearScaling {
		if key, found, _ := diffSection("rope.scaling", s, Scaling{Kind: s.Kind, Factor: s.Factor, Layers: s.Layers}); key != "" {
			return fielderror.New(key, found, "nothing with %s", LinearScaling)
		}
	}
	type number struct {
		key         string
		value, most float64
		zero        bool // is allowed
	}
	ns := []number{
		{"rope.theta", c.Rope.Theta, 1e12, false}, {"norm.eps", c.Norm.Eps, 1, false}, {"logits.softcap", c.Logits.Softcap, 1e6, true},
		{"moe.scale", c.MoE.Scale, 1e6, c.MoE.Experts == 0}, {"moe.balance.bias", c.MoE.Balance.Bias, 1, true},
		{"moe.balance.aux", c.MoE.Balance.Aux, 1e6, true}, {"moe.balance.z", c.MoE.Balance.Z, 1e6, true},
	}
	if s.Kind != "" {
		ns = append(ns, number{"rope.scaling.factor", s.Factor, 1e6, false})
	}
	if s.Kind == Llama3Scaling || s.Kind == YaRNScaling {
		ns = append(ns, number{"rope.scaling.low", s.Low, 1e6, false},
			number{"rope.scaling.high", s.High, 1e6, false}, number{"rope.scaling.original", float64(s.Original), 1 << 30, false},
			number{"rope.scaling.attention", s.Attention, 1e6, true})
	}
	for _, n := range ns {
		switch {
		case math.IsNaN(n.value) || n.value < 0 || n.value > n.most || n.value == 0 && !n.zero:
			least := "above"
			if n.zero {
				least = "of at least"
			}
			return fielderror.New(n.key, n.value, "a number %s 0 and at most %s", least, fielderror.Text(n.most))
		}
	}
	switch {
	case s.Kind != "" && s.Kind != LinearScaling && s.High <= s.Low:
		return fielderror.New("rope.scaling.high", s.High, "more than rope.scaling.low (%v)", s.Low)
	case s.Kind == YaRNScaling && c.Rope.Theta <= 1:
		return fielderror.New("rope.theta", c.Rope.Theta, "more than 1, with %s", YaRNScaling)
	case s.Kind != YaRNScaling && s.Attention != 0:
		return fielderror.New("rope.scaling.attention", s.Attention, "nothing without %s", YaRNScaling)
	}
	return nil
}
