package model

import (
	"encoding/json"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// savedModelType is the model_type in config.json of a model that has no class in Hugging Face Transformers.
const savedModelType = "gpupipe"

// saved is config.json of a model without a class: the keys of Config and the model_type.
type saved struct {
	ModelType string `json:"model_type"`
	Model     Config `json:"model"`
}

// JSON is config.json of a checkpoint. Transformers can load a checkpoint of a class whose tensors it names as this
// package does: then it is HuggingFace. Other models have Config's keys.
func (c Config) JSON() []byte {
	if class, err := hfClassOf(c); err == nil && len(class.names) == 0 {
		return class.write(c)
	}
	out, err := json.MarshalIndent(saved{savedModelType, c}, "", "  ")
	if err != nil {
		panic(err) // a struct of plain fields always marshals
	}
	return append(out, '\n')
}

// FromJSON reads what JSON wrote, or any config.json of a class that FromHuggingFace reads. The error is a *FieldError
// if a key asks for what this package does not compute.
func FromJSON(data []byte) (Config, error) {
	s := saved{Model: Defaults()}
	var kind struct {
		ModelType string `json:"model_type"`
	}
	if json.Unmarshal(data, &kind) != nil || kind.ModelType != savedModelType { // FromHuggingFace reports other mistakes
		return FromHuggingFace(data)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return Config{}, err
	}
	c := s.Model.Completed()
	return c, fielderror.In("model", c.Validate())
}
