package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Exportable returns a *FieldError of the first key for whose value Transformers has no class.
func (c Config) Exportable() error {
	_, err := hfClassOf(c)
	return err
}

// HuggingFace is the model's config.json as Hugging Face Transformers reads it; nil if it is not Exportable.
func (c Config) HuggingFace() []byte {
	class, err := hfClassOf(c)
	if err != nil {
		return nil
	}
	return class.write(c)
}

// hfClassOf returns the class that computes the model. Otherwise the error names a key that the class with the fewest
// other differences lacks.
func hfClassOf(c Config) (hfClass, error) {
	c.ZeroInit = false
	if c.MoE.Balance.Aux, c.MoE.Balance.Z, c.MoE.Balance.Proportional = 0, 0, false; c.MoE.Score == SigmoidScore {
		c.MoE.Balance.Bias = 0 // its rate; the bias itself is a tensor
	}
	c = c.Canonical()
	nearest, fewest := error(nil), 0
	for _, class := range hfClasses() {
		back, err := class.readKeys(class.write(c))
		if err != nil {
			continue // the class's own bounds
		}
		ds := differences("", c, back.Canonical())
		if len(ds) == 0 {
			return class, nil
		}
		if nearest == nil || len(ds) < fewest {
			d := ds[0]
			nearest, fewest = fielderror.New(d.key, d.left, "%s, which %s of Transformers has", fielderror.Text(d.right), class.name),
				len(ds)
		}
	}
	if nearest == nil {
		nearest = fielderror.New("arch", c.Arch, "a model that a class of Transformers computes")
	}
	return hfClass{}, nearest
}

// write is config.json of a model, without the features that the class lacks.
func (class hfClass) write(c Config) []byte {
	out := map[string]any{"architectures": []string{class.name}, "model_type": class.kind}
	for _, part := range class.parts {
		part.write(c, out)
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		panic(err) // plain values always marshal
	}
	return append(text, '\n')
}

// readKeys is read without the checks of the model.
func (class hfClass) readKeys(data []byte) (Config, error) {
	h := &hfKeys{absent: class.absent, read: map[string]bool{}}
	if err := json.Unmarshal(data, &h.values); err != nil {
		return Config{}, fmt.Errorf("not a JSON object: %w", err)
	}
	c := Defaults()
	for _, part := range class.parts {
		part.read(h, &c)
	}
	h.rest(c)
	return c.Canonical(), h.err
}

// FromHuggingFace reads a config.json of a class of Transformers. The error is a *FieldError if a key asks for
// something that this package does not compute.
func FromHuggingFace(data []byte) (Config, error) {
	var head struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Config{}, fmt.Errorf("not a JSON object: %w", err)
	}
	class, err := hfClassNamed(head.ModelType, head.Architectures)
	if err != nil {
		return Config{}, err
	}
	c, err := class.readKeys(data)
	if err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, inHuggingFaceTerms(err)
	}
	return c, nil
}

// hfClassNamed returns the class that transformers' AutoModelForCausalLM takes. The model_type names it, or the
// architectures if there is no model_type.
func hfClassNamed(modelType string, architectures []string) (hfClass, error) {
	var names []string
	for _, class := range hfClasses() {
		switch {
		case class.kind == modelType && len(architectures) > 0 && !slices.Contains(architectures, class.name) &&
			!slices.Contains(architectures, class.inner()):
			return class, fielderror.New("architectures", architectures, "%s, the class of model_type %s", class.name, modelType)
		case class.kind == modelType, modelType == "" && slices.Contains(architectures, class.name):
			return class, nil
		}
		names = append(names, class.name)
	}
	i := slices.IndexFunc(hfClasses(), func(class hfClass) bool { return slices.Contains(architectures, class.name) })
	if i >= 0 {
		return hfClass{}, fielderror.New("model_type", modelType, "%s, that of %s", hfClasses()[i].kind, hfClasses()[i].name)
	}
	return hfClass{}, fielderror.New("architectures", architectures, "one of %s", strings.Join(names, ", "))
}

// inner is the class of the model without its head.
func (c hfClass) inner() string { return strings.TrimSuffix(c.name, "ForCausalLM") + "Model" }

// hfNames are the keys of a config.json whose values Config has under other names.
var hfNames = map[string]string{
	"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads",
	"ffn.d_ff": "intermediate_size", "seq_len": "max_position_embeddings", "norm.eps": "rms_norm_eps", "rope.theta": "rope_theta",
	"tie_embeddings": "tie_word_embeddings", "untrained": "pad_token_id", "attention.head_dim": "head_dim",
	"attention.window":  "sliding_window",
	"attention.pattern": "layer_types", "moe.top_k": "num_experts_per_tok", "moe.d_ff": "moe_intermediate_size",
	"moe.dense_first": "first_k_dense_replace", "rope.scaling.kind": "rope_scaling",
	"rope.scaling.factor": "rope_scaling.factor", "rope.scaling.low": "rope_scaling.low_freq_factor",
	"rope.scaling.high":     "rope_scaling.high_freq_factor",
	"rope.scaling.original": "rope_scaling.original_max_position_embeddings", "rope.scaling.attention": "rope_scaling.attention_factor",
}

// ownKeys matches the keys of Config that an error mentions.
var ownKeys = regexp.MustCompile(`[a-z_]+(\.[a-z_]+)+|[dn]_[a-z_]+`)

// inHuggingFaceTerms names the keys of a FieldError as config.json does.
func inHuggingFaceTerms(err error) error {
	var e *FieldError
	if !errors.As(err, &e) {
		return err
	}
	theirs := func(key string) string { return cmp.Or(hfNames[key], key) }
	return &FieldError{Field: theirs(e.Field), Found: e.Found, Expected: ownKeys.ReplaceAllStringFunc(e.Expected, theirs), Err: e.Err}
}
