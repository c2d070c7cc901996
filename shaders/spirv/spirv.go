// Package spirv makes SPIR-V modules of kernels at run time, for Vulkan.
//
// [Compiler.Compile] translates WGSL. The translator is naga, compiled to WebAssembly and run by wazero: users need no
// shader compiler, and a crash of naga is an error. The text first loses what naga does not know (bf16, matrices that
// are not square), then naga translates it, and then the module is corrected accordingly. A folder caches the results
// by source, features and version of the translator. [Assemble] makes modules of SPIR-V assembly, for kernels that WGSL
// cannot express. [Parse] reads the interface of a module.
package spirv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/internal/codecache"
)

// Features describes the device that runs the code, and the checks of the code. All but the last are bits of the
// options of naga/lib.rs.
type Features uint32

const (
	CheckBuffers      Features = 1 << iota // the code checks indices into buffers: the device lacks robustBufferAccess2
	Float16                                // f16 in arithmetic and in storage
	Subgroups                              // subgroup operations
	CooperativeMatrix                      // SPV_KHR_cooperative_matrix
	ZeroWorkgroup                          // the device clears workgroup memory; code that does so compiles slowly
	TrustIndices                           // the code does not check indices into its own arrays
	TensorAddressing                       // SPV_NV_tensor_addressing, for Assemble alone
)

// Compiler translates kernels, and keeps the results in a folder. It may be used by several goroutines.
type Compiler struct {
	dir string

	mu         sync.Mutex
	naga       *naga // nil until it is needed
	closed     bool
	translated int // by naga, not found in the folder
}

// NewCompiler returns a compiler that caches modules, and naga itself as machine code, in dir. The folder must belong
// to the user alone, since the machine code is run as it is found; it is created so. "" caches nothing.
func NewCompiler(dir string) (*Compiler, error) {
	if dir != "" {
		if err := MakeCache(dir); err != nil {
			return nil, err
		}
	}
	return &Compiler{dir: dir}, nil
}

// MakeCache makes the folder for NewCompiler. It returns an error if NewCompiler would refuse the folder.
func MakeCache(dir string) error {
	for _, folder := range []string{dir, modules(dir)} {
		if err := codecache.Make(folder); err != nil {
			return fmt.Errorf("cache of shaders: %w", err)
		}
	}
	return nil
}

func modules(dir string) string { return filepath.Join(dir, "modules") }

// Close frees the memory of naga.
func (c *Compiler) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.naga == nil {
		return nil
	}
	n := c.naga
	c.naga = nil
	return n.close()
}

// Translated counts the kernels that naga has translated because the folder did not have them.
func (c *Compiler) Translated() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.translated
}

// Compile translates a kernel: one compute shader called main. An error of the source names the line. A folder that
// cannot be written is no error.
func (c *Compiler) Compile(wgsl string, f Features) (*Module, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the compiler is closed")
	}
	if strings.Contains(wgsl, "\x00") {
		return nil, errors.New("the source holds a zero byte")
	}
	f &^= TensorAddressing
	path := ""
	if c.dir != "" {
		path = filepath.Join(modules(c.dir), key(wgsl, f))
		if m := load(path); m != nil {
			return m, nil
		}
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	text, more := source(wgsl)
	code, err := c.naga.translate(text, f)
	if err != nil {
		return nil, err
	}
	code = amend(code, more)
	m, err := Parse(code)
	if err != nil {
		return nil, fmt.Errorf("naga's result: %w", err)
	}
	c.translated++
	if path != "" {
		_ = codecache.Write(path, code) // the next one translates again
	}
	return m, nil
}

// start makes naga. Where its compiled form cannot be kept it is compiled anew each time.
func (c *Compiler) start() (err error) {
	if c.naga != nil {
		return nil
	}
	if c.dir != "" {
		if c.naga, err = startNaga(filepath.Join(c.dir, "naga")); err == nil {
			return nil
		}
	}
	c.naga, err = startNaga("")
	return err
}

// translator is the checksum of the translator, which is megabytes.
var translator = sync.OnceValue(func() [sha256.Size]byte { return sha256.Sum256(nagaWasm) })

// key names a result by everything that it depends on.
func key(wgsl string, f Features) string {
	h := sha256.New()
	sum := translator()
	h.Write(sum[:])
	h.Write(binary.LittleEndian.AppendUint32(nil, uint32(f)))
	h.Write(binary.LittleEndian.AppendUint32(nil, amendments))
	h.Write([]byte(wgsl))
	return hex.EncodeToString(h.Sum(nil))
}

// load reads a module; nil when there is none, or it is damaged.
func load(path string) *Module {
	m, err := Parse(codecache.Read(path))
	if err != nil {
		return nil
	}
	return m
}
