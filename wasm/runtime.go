package wasm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/gpupipe/gpupipe/wasm/meter"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// Config is the configuration of a Runtime.
type Config struct {
	// CacheDir keeps compiled modules. They are machine code that runs unchecked, so only the user may have access to
	// the folder: NewRuntime sets its mode. "" keeps nothing.
	CacheDir string
	// Interpreter uses wazero's interpreter even where it has a compiler.
	Interpreter bool
	// Imports are the functions that modules may import besides log, fail, config_key and the system interface.
	Imports []Import
}

// Import is a function of the host that modules may import as gpupipe.Name.
type Import struct {
	Name    string
	Params  []api.ValueType
	Results []api.ValueType
	// Call gets the calling instance and the parameters, and stores the results in their place, as wazero's
	// api.GoModuleFunction does. An i32 is in the lower half of its word; the upper half is undefined. Call may use the
	// instance's Read, Copy, Write, Charge, Batch and Export, but call no function of the module. An error ends the
	// module's call and closes the instance. The call then fails with the kind of an *Error, else with Failed.
	Call func(i *Instance, stack []uint64) error
}

// Runtime compiles and holds modules. It may be used by several goroutines.
type Runtime struct {
	wazero  wazero.Runtime
	cache   wazero.CompilationCache
	dir     codecache.Dir
	allowed map[string]string // type by "module.name"
}

// NewRuntime returns a Runtime. Close frees it.
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

// provide makes a module of functions of the host. Users' modules cannot import the hidden ones by name.
func (r *Runtime) provide(module string, imports []Import, hidden ...Import) error {
	b := r.wazero.NewHostModuleBuilder(module)
	for n, im := range append(imports, hidden...) {
		key := module + "." + im.Name
		if n < len(imports) {
			if r.allowed[key] != "" || key == module+"."+meter.Tick {
				panic("wasm: two imports have the name " + key)
			}
			r.allowed[key] = signature(im.Params, im.Results)
		}
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, m api.Module, stack []uint64) {
			ctx.Value(instanceKey{}).(*Instance).serve(m, im, stack)
		}), im.Params, im.Results).Export(im.Name)
	}
	_, err := b.Instantiate(context.Background())
	return err
}

// Close closes all modules and instances.
func (r *Runtime) Close() error {
	err := r.wazero.Close(context.Background())
	if r.cache != nil {
		err = errors.Join(err, r.cache.Close(context.Background()))
	}
	return err
}

// Load checks, meters and compiles a module. Messages name it by file. Every error is an *Error of kind Refused.
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
	metered, err := meter.Rewrite(bin, meter.Options{MemoryPages: l.MemoryPages, TableElements: l.TableElements, Depth: l.Depth,
		Import: r.permit, Free: l.Unmetered})
	if err != nil {
		return nil, err
	}
	compiled, err := r.compile(metered)
	if err != nil && strings.Contains(err.Error(), "compilationcache") { // the cache was damaged after it was opened
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

// permit returns an error if modules may not have an import.
func (r *Runtime) permit(im meter.Import) error {
	if im.Kind != "function" {
		return fmt.Errorf("imports the %s %s.%s, expected functions only; a module has its own memory", im.Kind, im.Module, im.Name)
	}
	want, known := r.allowed[im.Module+"."+im.Name]
	switch {
	case !known && im.Module != meter.ImportModule && im.Module != wasiModule:
		return fmt.Errorf("imports %s.%s, expected a function of %s or %s", im.Module, im.Name, meter.ImportModule, wasiModule)
	case !known:
		return fmt.Errorf("imports %s.%s, expected one of %s", im.Module, im.Name, strings.Join(r.importsOf(im.Module), ", "))
	case im.Type != want:
		return fmt.Errorf("imports %s.%s as %s, expected %s", im.Module, im.Name, im.Type, want)
	}
	return nil
}

// compile compiles a module, and turns a panic of the compiler into an error, since modules are untrusted.
func (r *Runtime) compile(bin []byte) (m wazero.CompiledModule, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("the WebAssembly compiler panicked: %v", e)
		}
	}()
	return r.wazero.CompileModule(context.Background(), bin) // wazero compiles on this goroutine, so recover catches its panics
}
