package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/suggest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/pretrained"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// Model is a Llama by preset, by sizes, or by a preset with some sizes changed. With arch: hook, a hook builds the
// model and only vocab_size and seq_len are set.
type Model struct {
	Preset       string `yaml:"preset,omitempty" help:"Sizes by name. Single sizes can be changed with the other keys."`
	model.Config `yaml:",inline"`
}

// ArchHook is the architecture of models that a hook builds.
const ArchHook = "hook"

// FromHook reports whether a hook builds the model.
func (m Model) FromHook() bool { return m.Arch == ArchHook }

// MarshalYAML writes the keys that apply to the architecture.
func (m Model) MarshalYAML() (any, error) {
	type all Model
	if !m.FromHook() {
		return all(m), nil
	}
	return struct {
		Arch      string `yaml:"arch"`
		VocabSize int    `yaml:"vocab_size"`
		SeqLen    int    `yaml:"seq_len"`
	}{m.Arch, m.VocabSize, m.SeqLen}, nil
}

// Validate refuses impossible sizes. The error is a *model.FieldError.
func (m Model) Validate() error {
	switch {
	case !slices.Contains(append(model.Architectures(), ArchHook), m.Arch):
		return Invalid("arch", m.Arch, "%s or %s", strings.Join(model.Architectures(), ", "), ArchHook)
	case !m.FromHook():
		return m.Config.Validate()
	case m.VocabSize < 2 || m.VocabSize > 1<<24:
		return Invalid("vocab_size", m.VocabSize, "an integer from 2 to %d", 1<<24)
	case m.SeqLen < 1 || m.SeqLen > 1<<24:
		return Invalid("seq_len", m.SeqLen, "an integer from 1 to %d", 1<<24)
	}
	return nil
}

// completeFromHook refuses the sizes of a Llama beside arch: hook.
func (m *Model) completeFromHook(d *strictyaml.Document) error {
	refuse := func(key string, found any) error {
		if !d.Given("model." + key) {
			return nil
		}
		return fmt.Errorf("%s: %w", d.At("model."+key),
			Invalid("model."+key, found, "nothing: with arch: %s the module decides, which has a config of its own", ArchHook))
	}
	if err := refuse("preset", m.Preset); err != nil {
		return err
	}
	own := map[string]bool{"arch": true, "vocab_size": true, "seq_len": true}
	var err error
	entries(reflect.ValueOf(m.Config), "", func(e entry) {
		if err == nil && !own[e.name] && !isSection(e.value.Type()) {
			err = refuse(e.name, e.value.Interface())
		}
	})
	if err != nil {
		return err
	}
	*m = Model{Config: model.Config{Arch: ArchHook, VocabSize: m.VocabSize, SeqLen: m.SeqLen}}
	return nil
}

// completeModel fills in the model's sizes from the preset or from the weights to start from.
func (c *Config) completeModel(d *strictyaml.Document) error {
	if c.Model.FromHook() {
		return c.Model.completeFromHook(d)
	}
	base := model.Defaults()
	if c.Init.From != "" {
		if err := c.findInitialWeights(d); err != nil {
			return err
		}
	}
	switch {
	case c.Model.Preset != "":
		p, err := model.Preset(c.Model.Preset)
		if err != nil {
			return fmt.Errorf("%s: model.preset: %w%s", d.At("model.preset"), err, suggest.DidYouMean(c.Model.Preset, model.Presets()))
		}
		base = p
	case c.Init.From != "":
		p, err := ReadModel(c.Init.From)
		if err != nil {
			return fmt.Errorf("%s: init.from: %w", d.At("init.from"), err)
		}
		base = p
	}
	c.Model.Config = base
	if base.Equal(model.Defaults()) && !d.Filled("model") {
		return fmt.Errorf("%s: model: not given, expected {preset: one of %s} or sizes: vocab_size, d_model, n_layers, n_heads, d_ff and seq_len",
			d.At("model"), strings.Join(model.Presets(), ", "))
	}
	if err := d.DecodeSection("model", &c.Model); err != nil {
		return err
	}
	if c.Model.NKVHeads == 0 && !d.Given("model.n_kv_heads") {
		c.Model.NKVHeads = c.Model.NHeads
	}
	c.Model.Config = c.Model.Completed()
	if c.Init.From != "" {
		return c.checkInitialWeights(d)
	}
	return nil
}

// findInitialWeights replaces init.from by the folder or file with the model.
func (c *Config) findInitialWeights(d *strictyaml.Document) (err error) {
	if err := c.CheckPaths("init.from"); err != nil {
		return fmt.Errorf("%s: %w", d.At("init.from"), err)
	}
	name := c.Init.From
	if c.Init.From, err = pretrained.Find(name, pretrained.Expected); err != nil {
		return fmt.Errorf("%s: init.from: %w", d.At("init.from"), err)
	}
	if hub.IsAddress(name) {
		c.paths.written[c.Init.From] = name
	}
	return nil
}

// checkInitialWeights refuses a model section that contradicts init.from. The context length and
// what matters to training alone may differ.
func (c *Config) checkInitialWeights(d *strictyaml.Document) error {
	found, err := ReadModel(c.Init.From)
	if err != nil {
		return fmt.Errorf("%s: init.from: %w", d.At("init.from"), err)
	}
	found.SeqLen, found.ZeroInit, found.MoE.Balance, found.Untrained = c.Model.SeqLen, c.Model.ZeroInit, c.Model.MoE.Balance,
		c.Model.Untrained
	if c.Init.ExtendVocab {
		found.VocabSize = max(found.VocabSize, c.Model.VocabSize)
	}
	if key, mine, theirs := c.Model.Canonical().Diff(found.Canonical()); key != "" {
		return fmt.Errorf("%s: model.%s: found %s, but the weights in %s have %s", d.At("model."+key), key, fielderror.Text(mine),
			c.Init.From, fielderror.Text(theirs))
	}
	return nil
}

// ReadModel reads a model's config from config.json in a folder, or from the metadata of a GGUF file. A model that a
// hook built is an error.
func ReadModel(dir string) (model.Config, error) {
	if gguf.IsFile(dir) {
		return readGGUF(dir)
	}
	saved, err := ReadHookModel(dir)
	if err != nil {
		return model.Config{}, err
	}
	if saved != nil {
		return model.Config{}, fmt.Errorf("%s: a hook built this model, expected a Llama; to train it: model: {arch: hook, …} and its module as the hook %s",
			filepath.Join(dir, pretrained.ConfigFile), hook.BuildModel)
	}
	return pretrained.Config(dir)
}

func readGGUF(path string) (c model.Config, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return c, err
	}
	c, _, err = model.FromGGUF(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
