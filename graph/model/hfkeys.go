package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// hfKeys reads the keys of a config.json. The first mistake is kept in err.
type hfKeys struct {
	values map[string]json.RawMessage
	absent map[string]any // transformers' values of keys that the class does not take from hfAbsent
	read   map[string]bool
	err    error
}

// hfAbsent are transformers' values of absent keys, where most classes agree.
var hfAbsent = map[string]any{
	"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false,
	"no_rope_layer_interval": 4, "decoder_sparse_step": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": false,
	"partial_rotary_factor": 1.0, "n_group": 1, "topk_group": 1,
}

// hfFixed are the keys that transformers reads in every class, with the only values that this package supports.
var hfFixed = map[string]any{
	"quantization_config": nil, "per_layer_config": nil, "is_causal": true, "partial_rotary_factor": 1.0, "attention_chunk_size": nil,
	"kv_sharing_modes": nil,
}

// raw returns a key's value, or what stands for it if it is absent; nil for null.
func (h *hfKeys) raw(key string) json.RawMessage {
	h.read[key] = true
	if v, ok := h.values[key]; ok {
		if string(v) == "null" {
			return nil
		}
		return v
	}
	for _, values := range []map[string]any{h.absent, hfAbsent} {
		if v, ok := values[key]; ok && v != nil {
			return json.RawMessage(jsonText(v))
		} else if ok {
			return nil
		}
	}
	return nil
}

// has reports whether the file has a key with a value other than null.
func (h *hfKeys) has(key string) bool {
	v, ok := h.values[key]
	return ok && string(v) != "null"
}

// into decodes a key's value. A key without a value leaves it.
func (h *hfKeys) into(key string, v any) {
	raw := h.raw(key)
	if raw == nil || h.err != nil {
		return
	}
	if err := json.Unmarshal(raw, v); err != nil {
		h.err = fielderror.New(key, oneLine(raw), "%s", jsonKind(v))
	}
}

// jsonKind names what a variable is decoded from.
func jsonKind(v any) string {
	switch v.(type) {
	case *int:
		return "an integer"
	case *float64:
		return "a number"
	case *bool:
		return "true or false"
	case *string:
		return "a text"
	case *[]int:
		return "a list of integers"
	case *[]string:
		return "a list of texts"
	}
	return fmt.Sprintf("a value of another type than %T", v)
}

func (h *hfKeys) int(key string) (n int) {
	h.into(key, &n)
	return n
}

func (h *hfKeys) float(key string) (x float64) {
	h.into(key, &x)
	return x
}

func (h *hfKeys) bool(key string) (b bool) {
	h.into(key, &b)
	return b
}

func (h *hfKeys) text(key string) (s string) {
	h.into(key, &s)
	return s
}

func (h *hfKeys) ints(key string) (list []int) {
	h.into(key, &list)
	return list
}

func (h *hfKeys) texts(key string) (list []string) {
	h.into(key, &list)
	return list
}

// refuse records that a key's value is not supported.
func (h *hfKeys) refuse(key, expected string, a ...any) {
	if h.err == nil {
		h.err = fielderror.New(key, oneLine(h.raw(key)), expected, a...)
	}
}

// only refuses every value of a key but one. An absent key and null are that value.
func (h *hfKeys) only(key string, want any) {
	var got any
	h.into(key, &got)
	if got != nil && fmt.Sprint(got) != fmt.Sprint(want) {
		h.refuse(key, "%s, the only supported value", jsonText(want))
	}
}

// rest refuses keys that change numbers and that the class does not read. Transformers ignores all other keys that were
// not read, and so does this package.
func (h *hfKeys) rest(c Config) {
	for _, key := range slices.Sorted(maps.Keys(hfFixed)) {
		h.only(key, hfFixed[key])
	}
	if !h.read["sliding_window"] && h.has("sliding_window") && h.int("sliding_window") < c.SeqLen {
		h.refuse("sliding_window", "null, or at least max_position_embeddings: in this class transformers has it in the cache of generated text alone")
	}
	if h.read["layer_types"] {
		return
	}
	for _, kind := range h.texts("layer_types") {
		if kind != hfFull && (kind != hfLocal || c.Attention.Window == 0) {
			h.refuse("layer_types", "%s alone: in this class transformers has other kinds in the cache of generated text alone", hfFull)
		}
	}
}

// hfFloat is a number that transformers wants to be a float: it is written with a point or an exponent.
type hfFloat float64

func (x hfFloat) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(float64(x))
	if err == nil && !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...)
	}
	return text, err
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
