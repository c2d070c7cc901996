package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// harmless are the keys of a config.json that do not change what the model computes.
var harmless = []string{
	"architectures", "model_type", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
	"is_llama_config", "torch_dtype", "dtype", "transformers_version", "transformers.js_config", "use_cache", "max_length",
	"do_sample", "temperature", "top_p", "top_k", "return_dict", "output_attentions", "output_hidden_states", "head_dim",
	"id2label", "label2id", "gradient_checkpointing", "auto_map",
}

// fixed are the keys of which only Llama's default value is supported.
var fixed = map[string]any{
	"hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "rope_scaling": nil, "pretraining_tp": 1.0,
	"rope_interleaved": false, "sliding_window": nil, "quantization_config": nil, "partial_rotary_factor": 1.0,
	"layer_types": nil,
}

// hfConfig is a config.json.
type hfConfig struct {
	Architectures    []string `json:"architectures"`
	ModelType        string   `json:"model_type"`
	VocabSize        int      `json:"vocab_size"`
	HiddenSize       int      `json:"hidden_size"`
	IntermediateSize int      `json:"intermediate_size"`
	NumLayers        int      `json:"num_hidden_layers"`
	NumHeads         int      `json:"num_attention_heads"`
	NumKVHeads       int      `json:"num_key_value_heads"`
	HeadDim          int      `json:"head_dim"`
	MaxPositions     int      `json:"max_position_embeddings"`
	NormEps          float64  `json:"rms_norm_eps"`
	RopeTheta        float64  `json:"rope_theta"`
	Tie              bool     `json:"tie_word_embeddings"`
	HiddenAct        string   `json:"hidden_act"`
	AttentionBias    bool     `json:"attention_bias"`
	MLPBias          bool     `json:"mlp_bias"`
	InitializerRange float64  `json:"initializer_range"`
	TorchDType       string   `json:"torch_dtype"`
	AttentionDropout float64  `json:"attention_dropout"`
	UseCache         bool     `json:"use_cache"`
}

// Exportable returns a *FieldError of the first key for whose value Transformers has no class.
func (c Config) Exportable() error {
	llama := Defaults()
	llama.Arch, llama.VocabSize, llama.DModel, llama.NLayers, llama.NHeads, llama.NKVHeads = c.Arch, c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads
	llama.SeqLen, llama.TieEmbeddings, llama.FFN.DFF, llama.Rope.Theta, llama.Norm.Eps = c.SeqLen, c.TieEmbeddings, c.FFN.DFF, c.Rope.Theta, c.Norm.Eps
	llama.ZeroInit = c.ZeroInit
	if key, found, want := c.Diff(llama); key != "" {
		return fielderror.New(key, found, "%s, which LlamaForCausalLM of Transformers has", fielderror.Text(want))
	}
	return nil
}

// HuggingFace is the model's config.json, as transformers' LlamaForCausalLM reads it; nil if it is not Exportable.
func (c Config) HuggingFace() []byte {
	if c.Exportable() != nil {
		return nil
	}
	out, err := json.MarshalIndent(hfConfig{
		Architectures: []string{"LlamaForCausalLM"}, ModelType: "llama", VocabSize: c.VocabSize, HiddenSize: c.DModel,
		IntermediateSize: c.FFN.DFF, NumLayers: c.NLayers, NumHeads: c.NHeads, NumKVHeads: c.NKVHeads, HeadDim: c.HeadDim(),
		MaxPositions: c.SeqLen, NormEps: c.Norm.Eps, RopeTheta: c.Rope.Theta, Tie: c.TieEmbeddings, HiddenAct: "silu",
		InitializerRange: InitStd, TorchDType: "float32", UseCache: true,
	}, "", "  ")
	if err != nil {
		panic(err) // a struct of plain fields always marshals
	}
	return append(out, '\n')
}

// FromHuggingFace reads a config.json of a Llama model. The error is a *FieldError if a key asks for what this package
// does not compute.
func FromHuggingFace(data []byte) (Config, error) {
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &keys); err != nil {
		return Config{}, fmt.Errorf("not a JSON object: %w", err)
	}
	// The defaults of transformers' LlamaConfig.
	h := hfConfig{NormEps: 1e-6, MaxPositions: 2048}
	if err := json.Unmarshal(data, &h); err != nil {
		return Config{}, err
	}
	if !slices.Contains(h.Architectures, "LlamaForCausalLM") && h.ModelType != "llama" {
		return Config{}, fielderror.New("architectures", h.Architectures, "LlamaForCausalLM")
	}
	if err := h.ropeParameters(keys); err != nil {
		return Config{}, err
	}
	if err := refuse(keys); err != nil {
		return Config{}, err
	}
	if h.NumKVHeads == 0 {
		h.NumKVHeads = h.NumHeads
	}
	c := Defaults()
	c.VocabSize, c.DModel, c.NLayers, c.NHeads, c.NKVHeads = h.VocabSize, h.HiddenSize, h.NumLayers, h.NumHeads, h.NumKVHeads
	c.FFN.DFF, c.SeqLen, c.Rope.Theta, c.Norm.Eps, c.TieEmbeddings = h.IntermediateSize, h.MaxPositions, h.RopeTheta, h.NormEps, h.Tie
	if err := c.Validate(); err != nil {
		return Config{}, inHuggingFaceTerms(err)
	}
	if h.HeadDim != 0 && h.HeadDim != c.HeadDim() {
		return Config{}, fielderror.New("head_dim", h.HeadDim, "hidden_size/num_attention_heads = %d", c.HeadDim())
	}
	return c, nil
}

// ropeParameters reads rope_parameters, which newer versions of transformers write instead of rope_theta and
// rope_scaling.
func (h *hfConfig) ropeParameters(keys map[string]json.RawMessage) error {
	raw, ok := keys["rope_parameters"]
	delete(keys, "rope_parameters")
	if ok && !bytes.Equal(raw, []byte("null")) {
		var p struct {
			Type  string  `json:"rope_type"`
			Theta float64 `json:"rope_theta"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return fmt.Errorf("rope_parameters: %w", err)
		}
		if p.Type != "" && p.Type != "default" {
			return fielderror.New("rope_parameters.rope_type", p.Type, `"default"`)
		}
		h.RopeTheta = p.Theta
	}
	if h.RopeTheta == 0 {
		h.RopeTheta = 10000
	}
	return nil
}

// refuse returns an error if a key is unknown or has an unsupported value.
func refuse(keys map[string]json.RawMessage) error {
	known := hfKeys()
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if want, ok := fixed[k]; ok {
			var got any
			if err := json.Unmarshal(keys[k], &got); err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			if _, object := got.(map[string]any); object || fmt.Sprint(got) != fmt.Sprint(want) && got != nil {
				return fielderror.New(k, keys[k], "%s, the only supported value", jsonText(want))
			}
			continue
		}
		if !known[k] && !slices.Contains(harmless, k) && !strings.HasPrefix(k, "_") {
			return fielderror.New(k, keys[k], "no such key, since it might change what the model computes")
		}
	}
	return nil
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// hfKeys are the keys that hfConfig reads.
func hfKeys() map[string]bool {
	known := map[string]bool{}
	var m map[string]any
	if err := json.Unmarshal([]byte(jsonText(hfConfig{})), &m); err != nil {
		panic(err)
	}
	for k := range m {
		known[k] = true
	}
	return known
}

// hfNames are the keys of a config.json whose values Config has under other names.
var hfNames = map[string]string{
	"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads",
	"ffn.d_ff": "intermediate_size", "seq_len": "max_position_embeddings", "norm.eps": "rms_norm_eps", "rope.theta": "rope_theta", "tie_embeddings": "tie_word_embeddings",
}

// inHuggingFaceTerms renames the key of a FieldError to that of config.json.
func inHuggingFaceTerms(err error) error {
	return fielderror.Rename(err, func(field string) string { return cmp.Or(hfNames[field], field) })
}
