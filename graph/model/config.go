package model

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Architectures lists the values of Config.Arch.
func Architectures() []string { return []string{"llama"} }

// Config is the shape of a Llama-family model. Lengths count elements; SeqLen is the longest context.
type Config struct {
	Arch          string  `yaml:"arch" json:"arch" help:"Architecture."`
	VocabSize     int     `yaml:"vocab_size" json:"vocab_size" help:"Tokens in the vocabulary." default:"the tokenizer's, or a preset's if that is larger"`
	DModel        int     `yaml:"d_model" json:"d_model" help:"Width of the residual stream."`
	NLayers       int     `yaml:"n_layers" json:"n_layers" help:"Number of layers."`
	NHeads        int     `yaml:"n_heads" json:"n_heads" help:"Attention heads."`
	NKVHeads      int     `yaml:"n_kv_heads" json:"n_kv_heads" help:"Heads of keys and values." default:"n_heads"`
	DFF           int     `yaml:"d_ff" json:"d_ff" help:"Width of the feed-forward layers."`
	SeqLen        int     `yaml:"seq_len" json:"seq_len" help:"Longest context, in tokens."`
	RopeTheta     float64 `yaml:"rope_theta" json:"rope_theta" help:"Base of the rotary position embedding."`
	NormEps       float64 `yaml:"norm_eps" json:"norm_eps" help:"Epsilon of the RMS norms."`
	TieEmbeddings bool    `yaml:"tie_embeddings" json:"tie_embeddings" help:"Use the embedding as the weights of the head, too."`
}

// presets are the SmolLM2 models as published, and a tiny model that trains in minutes on a CPU.
func presets() map[string]Config {
	llama := Config{Arch: "llama", NormEps: 1e-5, RopeTheta: 10000}
	tiny := llama
	tiny.VocabSize, tiny.DModel, tiny.NLayers, tiny.NHeads, tiny.NKVHeads = 256, 128, 4, 4, 4
	tiny.DFF, tiny.SeqLen = 352, 128
	smol := llama
	smol.VocabSize, smol.SeqLen, smol.RopeTheta, smol.TieEmbeddings = 49152, 2048, 100000, true
	smol135, smol360 := smol, smol
	smol135.DModel, smol135.NLayers, smol135.NHeads, smol135.NKVHeads, smol135.DFF = 576, 30, 9, 3, 1536
	smol360.DModel, smol360.NLayers, smol360.NHeads, smol360.NKVHeads, smol360.DFF = 960, 32, 15, 5, 2560
	return map[string]Config{"tiny": tiny, "smollm2-135m": smol135, "smollm2-360m": smol360}
}

// Presets lists the names of the presets.
func Presets() []string { return slices.Sorted(maps.Keys(presets())) }

// Preset returns the config of a preset.
func Preset(name string) (Config, error) {
	c, ok := presets()[name]
	if !ok {
		return Config{}, fmt.Errorf("unknown preset %q, expected one of %s", name, strings.Join(Presets(), ", "))
	}
	return c, nil
}

// Defaults returns the default of every value that has one. Sizes have none.
func Defaults() Config { return Config{Arch: "llama", RopeTheta: 10000, NormEps: 1e-5} }

// FieldError is an invalid value of a config's field. Fields have their names in YAML, those of a config.json their
// keys there.
type FieldError = fielderror.Error

// Validate refuses invalid values. The error is a *FieldError.
func (c Config) Validate() error {
	if !slices.Contains(Architectures(), c.Arch) {
		return fielderror.New("arch", c.Arch, "%s", strings.Join(Architectures(), " or "))
	}
	// The upper bounds keep products of sizes far from overflow.
	for _, s := range []struct {
		key         string
		value, most int
	}{
		{"vocab_size", c.VocabSize, 1 << 24}, {"d_model", c.DModel, 1 << 20}, {"n_layers", c.NLayers, 1 << 12},
		{"n_heads", c.NHeads, 1 << 12}, {"n_kv_heads", c.NKVHeads, 1 << 12}, {"d_ff", c.DFF, 1 << 22},
		{"seq_len", c.SeqLen, 1 << 24},
	} {
		if s.value < 1 || s.value > s.most {
			return fielderror.New(s.key, s.value, "an integer from 1 to %d", s.most)
		}
	}
	switch {
	case c.VocabSize < 2:
		return fielderror.New("vocab_size", c.VocabSize, "at least 2")
	case c.DModel%c.NHeads != 0:
		return fielderror.New("d_model", c.DModel, "a multiple of n_heads (%d)", c.NHeads)
	case c.NHeads%c.NKVHeads != 0:
		return fielderror.New("n_heads", c.NHeads, "a multiple of n_kv_heads (%d)", c.NKVHeads)
	case c.HeadDim()%2 != 0:
		return fielderror.New("d_model", c.DModel, "an even d_model/n_heads, since rotary positions turn pairs; found %d/%d = %d",
			c.DModel, c.NHeads, c.HeadDim())
	case !(c.RopeTheta > 0) || c.RopeTheta > 1e12:
		return fielderror.New("rope_theta", c.RopeTheta, "a number above 0 and at most 1e12")
	case !(c.NormEps > 0) || c.NormEps > 1:
		return fielderror.New("norm_eps", c.NormEps, "a number above 0 and at most 1")
	}
	for _, p := range c.Parameters() {
		if err := p.Type.Shape.Check(); err != nil {
			return fielderror.New("vocab_size", c.VocabSize, "parameters that 32 bits can index: %s: %v", p.Name, err)
		}
	}
	return nil
}

// Size returns the model's lengths.
func (c Config) Size() Size {
	return Size{VocabSize: c.VocabSize, SeqLen: c.SeqLen, DModel: c.DModel, Hidden: c.DModel}
}

// Variables are the variables that hold the data of a microbatch: see Size.Variables.
func (c Config) Variables(in Inputs, batch int) []graph.Named { return c.Size().Variables(in, batch) }

// HeadDim is the width of an attention head.
func (c Config) HeadDim() int { return c.DModel / c.NHeads }

// WithSeqLen returns the model for sequences of another length.
func (c Config) WithSeqLen(seqLen int) (Model, error) {
	c.SeqLen = seqLen
	return c, c.Validate()
}

// Diff returns the first key, in the order of the fields, whose values differ between two configs, with both values.
// The key is empty if the configs are equal.
func (c Config) Diff(o Config) (key string, left, right any) {
	l, r := reflect.ValueOf(c), reflect.ValueOf(o)
	for i := range l.NumField() {
		if left, right = l.Field(i).Interface(), r.Field(i).Interface(); left != right {
			return l.Type().Field(i).Tag.Get("yaml"), left, right
		}
	}
	return "", nil, nil
}
