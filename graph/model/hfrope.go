package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// ropeParameters is rope_scaling, or an entry of rope_parameters, which newer versions of transformers write.
type ropeParameters struct {
	Kind     string   `json:"rope_type,omitempty"`
	OldKind  string   `json:"type,omitempty"`
	Theta    *hfFloat `json:"rope_theta,omitempty"`
	Partial  *hfFloat `json:"partial_rotary_factor,omitempty"`
	Factor   hfFloat  `json:"factor,omitempty"`
	Low      hfFloat  `json:"low_freq_factor,omitempty"`
	High     hfFloat  `json:"high_freq_factor,omitempty"`
	Original int      `json:"original_max_position_embeddings,omitempty"`
	yarnParameters
}

// yarnParameters are the keys that rope_type yarn has besides. If there are both mscale and mscale_all_dim, the default
// of attention_factor is the quotient of the factors that they give.
type yarnParameters struct {
	Attention   hfFloat `json:"attention_factor,omitempty"`
	Fast        hfFloat `json:"beta_fast,omitempty"`
	Slow        hfFloat `json:"beta_slow,omitempty"`
	MScale      hfFloat `json:"mscale,omitempty"`
	MScaleOfAll hfFloat `json:"mscale_all_dim,omitempty"`
	Truncate    *bool   `json:"truncate,omitempty"`
}

// defaultRope is the rope_type without scaling.
const defaultRope = "default"

// hfRope is one rotary embedding for all layers.
var hfRope = hfPart{func(h *hfKeys, c *Config) {
	c.Rope.Theta = h.float("rope_theta")
	key := "rope_parameters" // rope_scaling, if there is one, replaces it
	if raw := h.raw("rope_scaling"); raw != nil && string(oneLine(raw)) != "{}" {
		key = "rope_scaling"
	}
	if raw := h.raw(key); raw != nil {
		h.rope(key, raw, c)
	}
	h.raw("rope_parameters")
}, func(c Config, out map[string]any) {
	out["rope_theta"], out["rope_scaling"] = hfFloat(c.Rope.Theta), any(nil)
	if c.Rope.Scaling.Kind != "" {
		out["rope_scaling"] = c.ropeParameters()
	}
}}

// rope reads rope_scaling or an object of rope_parameters.
func (h *hfKeys) rope(key string, raw json.RawMessage, c *Config) {
	var p ropeParameters
	kind := ropeKind(raw)
	if slices.Contains([]string{defaultRope, LinearScaling, Llama3Scaling, YaRNScaling}, kind) { // others have other keys
		var kinds map[string]json.RawMessage
		err := errors.Join(json.Unmarshal(raw, &p), json.Unmarshal(raw, &kinds))
		if err == nil && (kinds[hfFull] != nil || kinds[hfLocal] != nil) {
			err = errors.New("this class has none for each kind of layers")
		}
		if err != nil && h.err == nil {
			h.err = fielderror.New(key, oneLine(raw), "the keys of rope_type %s: %v", kind, err)
			return
		}
	}
	if kind != YaRNScaling {
		p.yarnParameters = yarnParameters{} // transformers ignores them
	}
	if outer := "original_max_position_embeddings"; !strings.Contains(key, ".") && h.has(outer) {
		p.Original = h.int(outer)
	}
	if p.Theta != nil {
		c.Rope.Theta = float64(*p.Theta)
	}
	if p.Partial != nil {
		h.absent = with(h.absent, "partial_rotary_factor", float64(*p.Partial))
	}
	switch kind {
	case defaultRope:
		c.Rope.Scaling = Scaling{}
	case LinearScaling:
		c.Rope.Scaling = Scaling{Kind: LinearScaling, Factor: float64(p.Factor)}
	case Llama3Scaling:
		c.Rope.Scaling = Scaling{Kind: Llama3Scaling, Factor: float64(p.Factor), Low: float64(p.Low), High: float64(p.High),
			Original: p.Original}
		if p.Original == 0 {
			c.Rope.Scaling.Original = c.SeqLen
		}
	case YaRNScaling:
		if p.Truncate != nil && !*p.Truncate && h.err == nil {
			h.err = fielderror.New(key+".truncate", false, "true, the only supported value")
		}
		c.Rope.Scaling = p.yarn(c.SeqLen)
	default:
		if h.err == nil {
			h.err = fielderror.New(key+".rope_type", kind, "%q, %q, %q or %q", defaultRope, LinearScaling, Llama3Scaling, YaRNScaling)
		}
	}
}

// yarn is the scaling of rope_type yarn, with transformers' defaults.
func (p ropeParameters) yarn(seqLen int) Scaling {
	s := Scaling{Kind: YaRNScaling, Factor: float64(p.Factor), Low: float64(cmp.Or(p.Slow, 1)), High: float64(cmp.Or(p.Fast, 32)),
		Original: cmp.Or(p.Original, seqLen), Attention: float64(p.Attention)}
	if s.Attention == 0 && p.MScale != 0 && p.MScaleOfAll != 0 {
		s.Attention = yarnAttention(s.Factor, float64(p.MScale)) / yarnAttention(s.Factor, float64(p.MScaleOfAll))
	}
	return s
}

// ropeKind is the rope_type of an object, under its old name if it has only that.
func ropeKind(raw json.RawMessage) string {
	var p struct {
		Kind    string `json:"rope_type"`
		OldKind string `json:"type"`
	}
	_ = json.Unmarshal(raw, &p) // the caller decodes the object again, and reports the error
	return cmp.Or(p.Kind, p.OldKind, defaultRope)
}

// oneLine is an object without the white space of its file.
func oneLine(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// with is a map with one entry replaced.
func with(m map[string]any, key string, v any) map[string]any {
	out := map[string]any{key: v}
	for k, v := range m {
		if k != key {
			out[k] = v
		}
	}
	return out
}

func (c Config) ropeParameters() ropeParameters {
	s := c.Rope.Scaling
	theta := hfFloat(c.Rope.Theta)
	p := ropeParameters{Kind: defaultRope, Theta: &theta}
	switch s.Kind {
	case LinearScaling:
		p.Kind, p.Factor = s.Kind, hfFloat(s.Factor)
	case Llama3Scaling:
		p.Kind, p.Factor, p.Low, p.High, p.Original = s.Kind, hfFloat(s.Factor), hfFloat(s.Low), hfFloat(s.High), s.Original
	case YaRNScaling:
		p.Kind, p.Factor, p.Slow, p.Fast, p.Original, p.Attention = s.Kind, hfFloat(s.Factor), hfFloat(s.Low), hfFloat(s.High),
			s.Original, hfFloat(s.Attention)
	}
	return p
}

// hfRopeOfKinds is a rotary embedding for each kind of layers. Those with a window may lack the scaling of the others.
var hfRopeOfKinds = hfPart{func(h *hfKeys, c *Config) {
	var kinds map[string]json.RawMessage
	nested := h.has("rope_parameters") && json.Unmarshal(h.raw("rope_parameters"), &kinds) == nil && kinds[hfFull] != nil
	if !nested {
		if hfRope.read(h, c); c.Rope.Scaling.Kind != "" {
			c.Rope.Scaling.Layers = FullLayers
		}
		return
	}
	h.raw("rope_scaling")
	h.raw("rope_theta")
	var all []Rope
	for _, kind := range []string{hfFull, hfLocal} {
		c.Rope = Rope{Theta: h.float("rope_theta")}
		if raw := kinds[kind]; raw != nil && string(raw) != "null" {
			h.rope("rope_parameters."+kind, raw, c)
		}
		all = append(all, c.Rope)
	}
	if len(slices.Compact(slices.Clone(all))) < 2 {
		return
	}
	if all[1] != (Rope{Theta: all[0].Theta}) {
		h.refuse("rope_parameters", "the same values for %s and %s, or the same without scaling for %s", hfFull, hfLocal, hfLocal)
	}
	c.Rope = all[0]
	c.Rope.Scaling.Layers = FullLayers
}, func(c Config, out map[string]any) {
	full, local := c.ropeParameters(), c.ropeParameters()
	if c.Rope.Scaling.Layers == FullLayers {
		c.Rope.Scaling = Scaling{}
		local = c.ropeParameters()
	}
	out["rope_theta"] = hfFloat(c.Rope.Theta)
	out["rope_parameters"] = map[string]any{hfFull: full, hfLocal: local}
}}
