package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// ModuleFile is the name, in a checkpoint or an export, of the module that builds the model.
const ModuleFile = "model.wasm"

// hookModelType is the model_type in config.json of a model that a hook builds.
const hookModelType = "gpupipe_hook"

// HookModel is config.json of a model that a hook builds. The module lies beside it.
type HookModel struct {
	Architectures []string   `json:"architectures"`
	ModelType     string     `json:"model_type"`
	VocabSize     int        `json:"vocab_size"`
	SeqLen        int        `json:"seq_len"`
	TorchDType    string     `json:"torch_dtype"`
	Module        HookModule `json:"module"`
}

// HookModule says how a HookModel's module is called, and which one it is.
type HookModule struct {
	File     string          `json:"file"`
	SHA256   string          `json:"sha256"`
	Config   json.RawMessage `json:"config"`
	Seed     uint64          `json:"seed"`
	MemoryMB int             `json:"memory_mb,omitempty"`
	Seconds  float64         `json:"seconds,omitempty"`
}

// ModelJSON is config.json of the model that the hook builds; sha256 is of its module.
func (h Hook) ModelJSON(size model.Size, sha256, dtype string) []byte {
	text, err := json.MarshalIndent(HookModel{
		Architectures: []string{"GpupipeHookModel"}, ModelType: hookModelType, VocabSize: size.VocabSize, SeqLen: size.SeqLen,
		TorchDType: dtype, Module: HookModule{ModuleFile, sha256, h.Config.JSON(), h.Seed, h.MemoryMB, h.Seconds}}, "", "  ")
	if err != nil {
		panic(err) // plain fields, and JSON
	}
	return append(text, '\n')
}

// ReadHookModel reads config.json in a folder. It returns nil if a hook did not build the model.
func ReadHookModel(dir string) (*HookModel, error) {
	path := filepath.Join(dir, "config.json")
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return nil, err
	}
	var m HookModel
	if json.Unmarshal(text, &m) != nil || m.ModelType != hookModelType { // model.FromHuggingFace reports other mistakes
		return nil, nil
	}
	if err := m.Model().Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &m, nil
}

// Model is the model section of a config for the same model.
func (m *HookModel) Model() Model {
	return Model{Config: model.Config{Arch: ArchHook, VocabSize: m.VocabSize, SeqLen: m.SeqLen}}
}

// Hook is the hook that builds the model, with its module in dir.
func (m *HookModel) Hook(dir string) (Hook, error) {
	fail := func(err error) (Hook, error) {
		return Hook{}, fmt.Errorf("%s: %w", filepath.Join(dir, "config.json"), err)
	}
	h := Hook{File: filepath.Join(dir, ModuleFile), Hook: hook.BuildModel, Seed: m.Module.Seed, MemoryMB: m.Module.MemoryMB,
		Seconds: m.Module.Seconds}
	d := json.NewDecoder(bytes.NewReader(m.Module.Config))
	d.UseNumber() // a float64 has too few digits for large integers
	if err := d.Decode(&h.Config.values); err != nil {
		return fail(fmt.Errorf("module.config: %w", err))
	}
	if err := h.validate(); err != nil {
		return fail(fielderror.In("module", err))
	}
	return h, nil
}
