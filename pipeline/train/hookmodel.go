package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// hookArch is the architecture of models that a hook writes.
const hookArch = "hook"

// written tells whether a hook writes the model. Of the sizes there are then vocab_size and seq_len only.
func (m ModelConfig) written() bool { return m.Arch == hookArch }

// MarshalYAML writes what there is.
func (m ModelConfig) MarshalYAML() (any, error) {
	type all ModelConfig
	if !m.written() {
		return all(m), nil
	}
	return struct {
		Arch      string `yaml:"arch"`
		VocabSize int    `yaml:"vocab_size"`
		SeqLen    int    `yaml:"seq_len"`
	}{m.Arch, m.VocabSize, m.SeqLen}, nil
}

// Validate refuses a shape that no model has; the error is a *model.KeyError.
func (m ModelConfig) Validate() error {
	switch {
	case m.Arch != "llama" && !m.written():
		return bad("arch", m.Arch, "llama or %s", hookArch)
	case !m.written():
		return m.Config.Validate()
	case m.VocabSize < 2 || m.VocabSize > 1<<24:
		return bad("vocab_size", m.VocabSize, "an integer from 2 to %d", 1<<24)
	case m.SeqLen < 1 || m.SeqLen > 1<<24:
		return bad("seq_len", m.SeqLen, "an integer from 1 to %d", 1<<24)
	}
	return nil
}

// completeWritten refuses the sizes of a Llama beside arch: hook.
func (m *ModelConfig) completeWritten(d *strictyaml.Document) error {
	refuse := func(key string, found any) error {
		if !d.Given("model." + key) {
			return nil
		}
		return fmt.Errorf("%s: %w", d.At("model."+key), bad("model."+key, found, "nothing: with arch: %s the module decides, which has a config of its own", hookArch))
	}
	if err := refuse("preset", m.Preset); err != nil {
		return err
	}
	own := map[string]bool{"arch": true, "vocab_size": true, "seq_len": true}
	for i, v := 0, reflect.ValueOf(m.Config); i < v.NumField(); i++ {
		key := v.Type().Field(i).Tag.Get("yaml")
		if own[key] {
			continue
		}
		if err := refuse(key, v.Field(i).Interface()); err != nil {
			return err
		}
	}
	*m = ModelConfig{Config: model.Config{Arch: hookArch, VocabSize: m.VocabSize, SeqLen: m.SeqLen}}
	return nil
}

// model is what a config describes or, where a hook writes it, what the hook wrote, for microbatches of some sequences among others.
func (h *hooks) model(c ModelConfig, batch int) (model.Model, error) {
	m := h.modelHook()
	if m == nil {
		return c.Config, nil
	}
	w, err := model.NewWritten(c.VocabSize, c.SeqLen, func(batch int) (*model.Draft, error) {
		return m.BuildModel(context.Background(), graphhook.Dims{Batch: batch, SeqLen: c.SeqLen, Vocab: c.VocabSize})
	})
	if err == nil {
		err = w.Prepare(batch)
	}
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = fmt.Errorf("hook %s: %s: %w", m.HookConfig.File, hook.BuildModel, err)
	}
	return w, usererror.New(err)
}

// openModel is the model of a config, for its microbatches, its pipeline and in its precision.
func (c Config) openModel(h *hooks) (model.Model, error) {
	m, err := h.model(c.Model, c.rows())
	if err == nil {
		err = usererror.New(c.Pipeline.fits(m))
	}
	if err != nil {
		return nil, err
	}
	return c.inPrecision(m)
}

// modelHook is the module that writes the model; nil: none does.
func (h *hooks) modelHook() *loadedHook {
	if ms := h.of(hook.BuildModel); len(ms) > 0 {
		return ms[0]
	}
	return nil
}

// withKept are the hooks of a config with the module that writes the model from the run's latest checkpoint, if it is not where it was.
func withKept(configs []HookConfig, run string, note func(format string, args ...any)) []HookConfig {
	configs = append([]HookConfig{}, configs...)
	for i, c := range configs {
		if _, err := os.Stat(c.File); c.Hook != hook.BuildModel || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		latest, _, err := checkpoint.Latest(run)
		if err != nil {
			continue // that the file is missing is what the user is told
		}
		if configs[i].module, err = latest.File(moduleFile); err == nil {
			note("%s is not there: the module that %s keeps is used", c.File, latest.Dir)
		}
	}
	return configs
}

// moduleFile, in a checkpoint or an export, is the module that writes the model.
const moduleFile = "model.wasm"

// writtenType is the model_type in config.json of a model that a hook writes.
const writtenType = "gpupipe_hook"

// keptModel is config.json of such a model.
type keptModel struct {
	Architectures []string   `json:"architectures"`
	ModelType     string     `json:"model_type"`
	VocabSize     int        `json:"vocab_size"`
	SeqLen        int        `json:"seq_len"`
	TorchDType    string     `json:"torch_dtype"`
	Module        keptModule `json:"module"`
}

// keptModule is how the module is called, and that it is the right one.
type keptModule struct {
	File     string          `json:"file"`
	SHA256   string          `json:"sha256"`
	Config   json.RawMessage `json:"config"`
	Seed     uint64          `json:"seed"`
	MemoryMB int             `json:"memory_mb,omitempty"`
	Seconds  float64         `json:"seconds,omitempty"`
}

// kept is config.json of the model that a module writes.
func (m *loadedHook) kept(size model.Size, dtype string) []byte {
	c := m.HookConfig
	text, err := json.MarshalIndent(keptModel{
		Architectures: []string{"GpupipeHookModel"}, ModelType: writtenType, VocabSize: size.VocabSize, SeqLen: size.SeqLen, TorchDType: dtype,
		Module: keptModule{moduleFile, m.SHA256, c.Config.JSON(), c.Seed, c.MemoryMB, c.Seconds}}, "", "  ")
	if err != nil {
		panic(err) // plain fields, and JSON
	}
	return append(text, '\n')
}

// readKept reads config.json in a folder; nil: a hook did not write the model.
func readKept(dir string) (*keptModel, error) {
	path := filepath.Join(dir, "config.json")
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return nil, err
	}
	var k keptModel
	if json.Unmarshal(text, &k) != nil || k.ModelType != writtenType { // what is wrong with others is for others to say
		return nil, nil
	}
	if err := (ModelConfig{Config: model.Config{Arch: hookArch, VocabSize: k.VocabSize, SeqLen: k.SeqLen}}).Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &k, nil
}

// open has the module in a folder write the model.
func (k *keptModel) open(dir string) (*hooks, model.Model, error) {
	fail := func(err error) (*hooks, model.Model, error) {
		return nil, nil, fmt.Errorf("%s: %w", filepath.Join(dir, "config.json"), err)
	}
	c := HookConfig{File: filepath.Join(dir, moduleFile), Hook: hook.BuildModel, Seed: k.Module.Seed, MemoryMB: k.Module.MemoryMB, Seconds: k.Module.Seconds}
	numbers := json.NewDecoder(bytes.NewReader(k.Module.Config))
	numbers.UseNumber()
	if err := numbers.Decode(&c.Config.values); err != nil {
		return fail(fmt.Errorf("module.config: %w", err))
	}
	if err := (Config{Hooks: []HookConfig{c}, Model: ModelConfig{Config: model.Config{Arch: hookArch}}}).validateHooks(); err != nil {
		return fail(fmt.Errorf("module: %s", strings.TrimPrefix(err.Error(), "hooks[0].")))
	}
	h, err := openHooks([]HookConfig{c}, "", hook.BuildModel)
	if err != nil {
		return nil, nil, err
	}
	if got := h.modelHook().SHA256; got != k.Module.SHA256 {
		return fail(errors.Join(fmt.Errorf("module.sha256: found %s, but %s has %s", k.Module.SHA256, c.File, got), h.close()))
	}
	m, err := h.model(ModelConfig{Config: model.Config{Arch: hookArch, VocabSize: k.VocabSize, SeqLen: k.SeqLen}}, 1)
	if err != nil {
		return nil, nil, errors.Join(err, h.close())
	}
	return h, m, nil
}
