// Package hook calls the hooks of users' WebAssembly modules: it passes arguments and checks results. A module can
// build the loss or the model of a run, map its documents and batches, set its learning rate and receive its metrics.
// docs/HOOKS.md describes the modules' side; package wasm is the sandbox.
package hook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/wasm"
)

// The hooks, by the names of the functions that modules export.
const (
	BuildLoss    = "build_loss"
	BuildModel   = "build_model"
	MapDocument  = "map_document"
	MapBatch     = "map_batch"
	TokenWeights = "token_weights"
	LearningRate = "learning_rate"
	OnMetrics    = "on_metrics"
)

// Companions of build_loss: functions that its module may export and that are not hooks themselves.
const (
	LossScalars = "loss_scalars"
	LossGrad    = "loss_grad"
)

// Kind describes a hook.
type Kind struct {
	Name       string
	Exclusive  bool        // a run has at most one module with it
	Skippable  bool        // on_error may skip the document or batch
	Companions []Companion // other functions that its module may export
}

// Companion is a function beside a hook.
type Companion struct{ Name, Purpose string }

// Kinds lists all hooks. Config, checks and documentation follow this table.
func Kinds() []Kind {
	return []Kind{
		{Name: BuildLoss, Exclusive: true, Companions: []Companion{
			{LossScalars, "called where " + BuildLoss + " of its module asks for scalars"},
			{LossGrad, "for checking only: gpupipe hook check"},
		}},
		{Name: BuildModel, Exclusive: true},
		{Name: MapDocument, Skippable: true},
		{Name: MapBatch, Skippable: true},
		{Name: TokenWeights, Skippable: true},
		{Name: LearningRate, Exclusive: true},
		{Name: OnMetrics},
	}
}

// Names lists the names of all hooks.
func Names() (names []string) {
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// Lookup returns the hook of a name.
func Lookup(name string) (k Kind, ok bool) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// Host runs hooks. Several goroutines may use it.
type Host struct {
	runtime *wasm.Runtime
	calls   sync.Map // *wasm.Instance to the object of its call in progress: *graphhook.Builder or *documents
}

// NewHost returns a Host that caches compiled modules in cacheDir, unless that is "".
func NewHost(cacheDir string) (*Host, error) {
	h := &Host{}
	var err error
	if h.runtime, err = wasm.NewRuntime(wasm.Config{CacheDir: cacheDir, Imports: append(h.graphImports(), h.emitImport())}); err != nil {
		return nil, err
	}
	return h, nil
}

// Close closes all modules.
func (h *Host) Close() error { return h.runtime.Close() }

// Spec is a module to load for a hook.
type Spec struct {
	File   string
	Hook   string // one of Names
	Config []byte // a JSON object; nil is {}
	Seed   uint64
	Limits wasm.Limits
	Log    func(line string) // may be called by several goroutines at a time; nil drops the module's output
}

// Module is a module that has been loaded for a hook.
type Module struct {
	Spec
	SHA256 string // of the file, in hexadecimal
	host   *Host
	module *wasm.Module
}

// Load reads and compiles a module, and checks that it has the hook. Errors are *wasm.Error.
func (h *Host) Load(s Spec) (*Module, error) {
	bin, err := ReadFile(s.File)
	if err != nil {
		return nil, refused(s.File, err)
	}
	return h.LoadBytes(s, bin)
}

// maxFileSize is the most bytes of a module's file.
const maxFileSize = 256 << 20

// ReadFile reads a module. It must be a regular file, since others may have no end, of at most 256 MiB.
func ReadFile(path string) ([]byte, error) {
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFileSize:
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", path, info.Size(), maxFileSize)
	}
	return os.ReadFile(path)
}

// LoadBytes is Load on the contents of the file.
func (h *Host) LoadBytes(s Spec, bin []byte) (*Module, error) {
	kind, ok := Lookup(s.Hook)
	if !ok {
		return nil, refused(s.File, fmt.Errorf("unknown hook %q, expected one of %s", s.Hook, strings.Join(Names(), ", ")))
	}
	m, err := h.runtime.Load(s.File, bin, s.Limits)
	if err != nil {
		return nil, err
	}
	err = m.CheckHook(s.Hook)
	for _, companion := range kind.Companions {
		if wrong := m.CheckHook(companion.Name); err == nil && wrong != nil && !errors.Is(wrong, wasm.ErrNoHook) {
			err = wrong
		}
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	sum := sha256.Sum256(bin)
	return &Module{Spec: s, SHA256: hex.EncodeToString(sum[:]), host: h, module: m}, nil
}

// Limits returns the module's limits, with defaults filled in.
func (m *Module) Limits() wasm.Limits { return m.module.Limits() }

// Has reports whether the module exports a function of the hooks' type.
func (m *Module) Has(name string) bool { return m.module.CheckHook(name) == nil }

// Stateful reports whether the module keeps state from one call to the next, so that it exports save and load.
func (m *Module) Stateful() bool { return m.module.Stateful() }

// Interface lists what the module imports, as module.name, and the functions that it exports.
func (m *Module) Interface() (imports, exports []string) { return m.module.Interface() }

// Peak returns the most units of work of one call so far, and the largest memory of an instance in bytes.
func (m *Module) Peak() (work int64, memory uint64) { return m.module.Peak() }

// Close frees the module's code.
func (m *Module) Close() error { return m.module.Close() }

func refused(file string, err error) error {
	return &wasm.Error{Hook: file, Batch: -1, Kind: wasm.Refused, Cause: err}
}

// invalid returns the error of a hook whose call succeeded with an invalid result.
func (m *Module) invalid(batch int, err error) error { return m.invalidOf(m.Hook, batch, err) }

func (m *Module) invalidOf(export string, batch int, err error) error {
	return &wasm.Error{Hook: m.File, Export: export, Batch: batch, Kind: wasm.Failed, Cause: err}
}

func (m *Module) options() wasm.Options {
	return wasm.Options{Hook: m.File, Config: m.Config, Seed: m.Seed, Log: m.Log}
}

func (m *Module) open(ctx context.Context) (*wasm.Instance, error) {
	return m.module.Open(ctx, m.options())
}

// serving runs f, a call of the instance. Meanwhile the instance's imports work on the given object.
func (h *Host) serving(i *wasm.Instance, on any, f func() (int32, error)) (int32, error) {
	h.calls.Store(i, on)
	defer h.calls.Delete(i)
	return f()
}

// served returns the object that the imports of the call in progress work on.
func served[T any](h *Host, i *wasm.Instance, hook string) (on T, err error) {
	v, _ := h.calls.Load(i)
	on, ok := v.(T)
	if !ok {
		return on, fmt.Errorf("called outside of %s, expected only within it", hook)
	}
	return on, nil
}
