package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

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
	if kind == defaultRope || kind == Llama3Scaling { // others have other keys
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&p); err != nil && h.err == nil {
			h.err = fielderror.New(key, oneLine(raw), "the keys of rope_type %s: %v", kind, err)
			return
		}
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
	case Llama3Scaling:
		c.Rope.Scaling = Scaling{Kind: Llama3Scaling, Factor: float64(p.Factor), Low: float64(p.Low), High: float64(p.High), Original: p.Original}
		if p.Original == 0 {
			c.Rope.Scaling.Original = c.SeqLen
		}
	default:
		if h.err == nil {
			h.err = fielderror.New(key+".rope_type", kind, "%q or %q", defaultRope, Llama3Scaling)
		}
	}
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
	if s.Kind != "" {
		p.Kind, p.Factor, p.Low, p.High, p.Original = s.Kind, hfFloat(s.Factor), hfFloat(s.Low), hfFloat(s.High), s.Original
	}
	return p
}

// hfRopeOfKinds is a rotary embedding for each kind of layers, which must be the same.
var hfRopeOfKinds = hfPart{func(h *hfKeys, c *Config) {
	var kinds map[string]json.RawMessage
	nested := h.has("rope_parameters") && json.Unmarshal(h.raw("rope_parameters"), &kinds) == nil && kinds[hfFull] != nil
	if !nested {
		if h.has("rope_scaling") {
			if h.err == nil {
				h.err = fielderror.New("rope_scaling", oneLine(h.raw("rope_scaling")), "null: this class scales the layers without a window alone")
			}
		}
		hfRope.read(h, c)
		return
	}
	h.raw("rope_scaling")
	h.raw("rope_theta")
	var all []Rope
	for _, kind := range []string{hfFull, hfLocal} {
		if raw := kinds[kind]; raw != nil && string(raw) != "null" {
			c.Rope.Theta = h.float("rope_theta")
			h.rope("rope_parameters."+kind, raw, c)
			all = append(all, c.Rope)
		}
	}
	if len(slices.Compact(all)) > 1 {
		h.refuse("rope_parameters", "the same values for %s and %s", hfFull, hfLocal)
	}
}, func(c Config, out map[string]any) {
	out["rope_theta"] = hfFloat(c.Rope.Theta)
	out["rope_parameters"] = map[string]any{hfFull: c.ropeParameters(), hfLocal: c.ropeParameters()}
}}
