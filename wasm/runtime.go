package wasm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/gpupipe/gpupipe/wasm/meter"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// Config of a Runtime.
type Config struct {
	// CacheDir keeps compiled modules, which are machine code that is run as it is found: it must belong to the user
	// alone, and is made so. "" keeps nothing.
	CacheDir string
	// Interpreter uses wazero's interpreter even where it has a compiler.
	Interpreter bool
	// Imports are what modules may import beside log, fail and the system interface.
	Imports []Import
}

// Import is a function of the host's that modules may import as gpupipe.Name.
type Import struct {
	Name    string
	Params  []api.ValueType
	Results []api.ValueType
	// Call gets the calling instance and the parameters, an i32 in the lower half of its word (the upper one may hold
	// anything), and leaves the results in their place (wazero's
	// api.GoModuleFunction). It may use the instance's Memory, Charge and Batch, and call nothing of the module.
	// An error ends the module's call: with the kind of an *Error, else Failed. After that the instance is closed.
	Call func(i *Instance, stack []uint64) error
}

// Runtime compiles and holds modules. It may be used by several goroutines.
type Runtime struct {
	wazero  wazero.Runtime
	cache   wazero.CompilationCache
	dir     codecache.Dir
	allowed map[string]string // type by "module.name"
}

// NewRuntime makes one. Close gives back what it holds.
func NewRuntime(c Config) (*Runtime, error) {
	ctx := context.Background()
	config := wazero.NewRuntimeConfig()
	if c.Interpreter {
		config = wazero.NewRuntimeConfigInterpreter()
	}
	r := &Runtime{allowed: map[string]string{}}
	if c.CacheDir != "" {
		dir, err := codecache.Open(c.CacheDir)
		if err != nil {
			return nil, fmt.Errorf("cache of compiled hooks: %w", err)
		}
		r.dir = dir
		cache, err := wazero.NewCompilationCacheWithDir(c.CacheDir)
		if err != nil {
			return nil, fmt.Errorf("cache of compiled hooks: %w", err)
		}
		r.cache = cache
		config = config.WithCompilationCache(cache)
	}
	r.wazero = wazero.NewRuntimeWithConfig(ctx, config.WithDebugInfoEnabled(false).
		WithCoreFeatures(api.CoreFeaturesV2|experimental.CoreFeaturesTailCall))
	own := append(abiImports(), c.Imports...)
	if err := errors.Join(r.provide(meter.ImportModule, own, tickImport()), r.provide(wasiModule, wasiImports())); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// provide makes a module of the host's functions; hidden ones cannot be imported by name.
func (r *Runtime) provide(module string, imports []Import, hidden ...Import) error {
	b := r.wazero.NewHostModuleBuilder(module)
	for n, im := range append(imports, hidden...) {
		key := module + "." + im.Name
		if n < len(imports) {
			if r.allowed[key] != "" || key == module+"."+meter.Tick {
				panic("wasm: two imports are called " + key)
			}
			r.allowed[key] = signature(im.Params, im.Results)
		}
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, m api.Module, stack []uint64) {
			calledInstance(ctx).serve(m, im, stack)
		}), im.Params, im.Results).Export(im.Name)
	}
	_, err := b.Instantiate(context.Background())
	return err
}

// Close ends every module and instance that is left.
func (r *Runtime) Close() error {
	err := r.wazero.Close(context.Background())
	if r.cache != nil {
		err = errors.Join(err, r.cache.Close(context.Background()))
	}
	return err
}

// LoadFile reads and loads a module.
func (r *Runtime) LoadFile(path string, l Limits) (*Module, error) {
	bin, err := os.ReadFile(path)
	if err != nil {
		return nil, &Error{Hook: path, Batch: -1, Kind: Refused, Cause: err}
	}
	return r.Load(path, bin, l)
}

// Load checks, meters and compiles a module; file is what messages call it. Every error is an *Error of kind Refused.
func (r *Runtime) Load(file string, bin []byte, l Limits) (*Module, error) {
	m, err := r.load(bin, l)
	if err != nil {
		return nil, &Error{Hook: file, Batch: -1, Kind: Refused, Cause: err}
	}
	m.File = file
	return m, nil
}

func (r *Runtime) load(bin []byte, l Limits) (*Module, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	l = l.WithDefaults()
	metered, err := meter.Rewrite(bin, meter.Options{MemoryPages: l.MemoryPages, TableElements: l.TableElements, Depth: l.Depth, Import: r.permit, Free: l.Unmetered})
	if err != nil {
		return nil, err
	}
	compiled, err := r.compile(metered)
	if err != nil && strings.Contains(err.Error(), "compilationcache") { // damaged since it was opened
		if err := r.dir.Clear(); err != nil {
			return nil, err
		}
		compiled, err = r.compile(metered)
	}
	if err != nil {
		return nil, err
	}
	if err := r.dir.Seal(); err != nil {
		return nil, fmt.Errorf("cache of compiled hooks: %w", err)
	}
	m := &Module{runtime: r, compiled: compiled, limits: l}
	if err := m.check(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// permit says whether a module may have an import.
func (r *Runtime) permit(im meter.Import) error {
	if im.Kind != "function" {
		return fmt.Errorf("imports the %s %s.%s, but only functions can be imported (a module brings its own memory)", im.Kind, im.Module, im.Name)
	}
	want, known := r.allowed[im.Module+"."+im.Name]
	switch {
	case !known && im.Module != meter.ImportModule && im.Module != wasiModule:
		return fmt.Errorf("imports %s.%s, but there is only %s and %s", im.Module, im.Name, meter.ImportModule, wasiModule)
	case !known:
		return fmt.Errorf("imports %s.%s, which does not exist; there are %s", im.Module, im.Name, strings.Join(r.importsOf(im.Module), ", "))
	case im.Type != want:
		return fmt.Errorf("imports %s.%s as %s, expected %s", im.Module, im.Name, im.Type, want)
	}
	return nil
}

// compile turns even a panic of the compiler into an error: the module is the user's, not ours.
func (r *Runtime) compile(bin []byte) (m wazero.CompiledModule, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("the compiler gave up: %v", e)
		}
	}()
	return r.wazero.CompileModule(context.Background(), bin) // with one worker, this goroutine: a panic elsewhere could not be caught
}
