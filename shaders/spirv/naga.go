package spirv

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

//go:embed naga/naga.wasm
var nagaWasm []byte

// mostPages bounds what naga may hold: 256 MiB, some thousand times a kernel's text.
const mostPages = 4096

// naga is the translator, a WebAssembly module that imports nothing.
type naga struct {
	runtime  wazero.Runtime
	cache    wazero.CompilationCache // nil: nothing is kept
	compiled wazero.CompiledModule
	instance api.Module // nil after a trap
}

// startNaga compiles the module, or takes what was compiled before from a folder ("": none).
func startNaga(dir string) (*naga, error) {
	n, err := compileNaga(dir)
	if err != nil && dir != "" && strings.Contains(err.Error(), "compilationcache") { // damaged since it was opened
		if err := codecache.Dir(dir).Clear(); err != nil {
			return nil, err
		}
		n, err = compileNaga(dir)
	}
	return n, err
}

func compileNaga(dir string) (*naga, error) {
	ctx := context.Background()
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(mostPages).WithDebugInfoEnabled(false)
	n := &naga{}
	kept, err := codecache.Dir(""), error(nil)
	if dir != "" {
		if kept, err = codecache.Open(dir); err != nil {
			return nil, err
		}
		if n.cache, err = wazero.NewCompilationCacheWithDir(dir); err != nil {
			return nil, err
		}
		config = config.WithCompilationCache(n.cache)
	}
	n.runtime = wazero.NewRuntimeWithConfig(ctx, config)
	if n.compiled, err = n.runtime.CompileModule(ctx, nagaWasm); err == nil {
		err = kept.Seal()
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *naga) close() error {
	err := n.runtime.Close(context.Background())
	if n.cache != nil {
		err = errors.Join(err, n.cache.Close(context.Background()))
	}
	return err
}

// translate turns WGSL into SPIR-V, in bytes.
func (n *naga) translate(wgsl string, f Features) (code []byte, err error) {
	ctx := context.Background()
	if n.instance == nil {
		if n.instance, err = n.runtime.InstantiateModule(ctx, n.compiled, wazero.NewModuleConfig().WithName("")); err != nil {
			return nil, fmt.Errorf("naga: %w", err)
		}
	}
	call := func(name string, args ...uint64) uint64 {
		if err != nil {
			return 0
		}
		var results []uint64
		if results, err = n.instance.ExportedFunction(name).Call(ctx, args...); err != nil {
			return 0
		}
		return results[0]
	}
	memory := n.instance.Memory()
	at := call("reserve", uint64(len(wgsl)))
	if err == nil && !memory.WriteString(uint32(at), wgsl) {
		err = errors.New("naga has no room for the source")
	}
	refused := call("translate", uint64(f))
	trap := err
	err = nil
	from, size := call("output"), call("output_size")
	out, _ := memory.Read(uint32(from), uint32(size))
	if trap != nil || err != nil {
		text := string(out)
		n.instance.Close(ctx)
		n.instance = nil
		return nil, fmt.Errorf("naga gave up: %s (%.200v)", oneLine(text), errors.Join(trap, err))
	}
	if refused != 0 {
		return nil, errors.New(oneLine(string(out)))
	}
	return append([]byte(nil), out...), nil
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "�")), " ")
	const most = 600
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " …"
	}
	return s
}
