// Package device is what the rest of gpupipe knows of a GPU: memory, programs that are data, and an
// in-order queue. Backends implement Device; only cmd names one.
package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

// Kind tells what sort of hardware stands behind an adapter.
type Kind string

const (
	Discrete   Kind = "discrete"
	Integrated Kind = "integrated"
	Virtual    Kind = "virtual"
	Software   Kind = "software" // a CPU pretending: lavapipe, SwiftShader, WARP
	Null       Kind = "null"     // executes nothing
)

// Rank orders kinds as adapters are listed: hardware first.
func (k Kind) Rank() int {
	return slices.Index([]Kind{Discrete, Integrated, Virtual, Software, Null}, k)
}

// Vendor names a maker by its PCI or Khronos number; "" when it is not known.
func Vendor(id uint32) string {
	return map[uint32]string{
		0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel", 0x106B: "Apple", 0x13B5: "Arm", 0x5143: "Qualcomm",
		0x10005: "Mesa", 0x1AE0: "Google", 0x1414: "Microsoft",
	}[id]
}

// Info names an adapter.
type Info struct {
	Name    string `json:"name"`    // "webgpu:0": backend and index, as users write it
	Adapter string `json:"adapter"` // "NVIDIA H200"
	Vendor  string `json:"vendor,omitempty"`
	Driver  string `json:"driver,omitempty"` // name and version, as the driver tells it
	API     string `json:"api,omitempty"`    // "vulkan", "metal", "dx12"
	Kind    Kind   `json:"kind"`
}

// Device is one GPU: memory and one in-order queue. All methods are safe for concurrent use; work runs in
// the order in which it was enqueued. Pending.Wait and Sync wait for the GPU; Run, Write and Read only while so much is
// under way already that memory would grow.
type Device interface {
	Info() Info
	Limits() target.Limits
	// Alloc makes a zeroed buffer of size bytes (a multiple of 4). It fails when the device's memory budget is spent.
	Alloc(label string, size int64) (Buffer, error)
	// Load compiles a program's shaders (each distinct source once per device) and binds its buffers.
	Load(p *Program) (Loaded, error)
	// Run enqueues a loaded program.
	Run(l Loaded) error
	// Write enqueues a copy of data (a multiple of 4 bytes; copied before return) into b at offset.
	Write(b Buffer, offset int64, data []byte) error
	// Read enqueues a copy of n bytes of b at offset to the host.
	Read(b Buffer, offset, n int64) (Pending, error)
	// Sync waits until all enqueued work is done, and returns the first error of that work.
	Sync() error
	// Allocated returns the bytes of all live buffers that Alloc made, and of the device's own staging.
	Allocated() (buffers, staging int64)
	// Close releases everything. Later calls return ErrClosed, and so may a Load under way: nobody waits for all of a program's kernels.
	Close() error
}

// Budget is the memory that a device may take in bytes, 0 where it is not known.
func Budget(d Device) int64 {
	if b, ok := d.(interface{ Budget() int64 }); ok {
		return b.Budget()
	}
	return 0
}

// Buffer is a range of device memory. Only the Device that made it takes it back.
type Buffer interface {
	Label() string
	Size() int64
	Release()
}

// Loaded is a program that a device has compiled and bound.
type Loaded interface{ Release() }

// Pending is a read under way.
type Pending interface {
	// Wait returns the bytes once they have arrived; the caller owns them.
	Wait() ([]byte, error)
}

// Program is a recorded list of commands: data, to be loaded by any backend.
type Program struct {
	Label    string
	Shaders  []Shader
	Commands []Command
}

// Shader is one compute kernel. Its entry point is main; its bindings are group 0, 0…n−1, all storage buffers.
type Shader struct {
	Label           string // names the kernel in every error
	WGSL            string // or SPIR-V assembly, where Limits say that the device takes it; it begins with target.Assembly
	Bindings        []Access
	Workgroup       [3]int
	WorkgroupMemory int // bytes
	// Inside says that no index leaves its array, of a binding or of the source's own, whatever the data: devices need not look.
	Inside bool
}

// Assembly tells whether the source is SPIR-V assembly.
func (s *Shader) Assembly() bool { return strings.HasPrefix(s.WGSL, target.Assembly) }

// Access is how a shader declares a binding.
type Access uint8

const (
	ReadWrite Access = iota // var<storage, read_write>
	ReadOnly                // var<storage, read>
)

// Command is a dispatch when Shader ≥ 0, else a copy of Args[0] to Args[1] (equal sizes, not overlapping; one buffer may
// be both). A dispatch binds a buffer several times either read-only throughout, or writable throughout and at ranges
// that do not overlap; Checker has every rule.
type Command struct {
	Shader int
	Args   []Range
	Groups [3]int
}

// Copy marks a Command that copies.
const Copy = -1

// Range is part of a buffer, in bytes.
type Range struct {
	Buffer       Buffer
	Offset, Size int64
}

// Error is a failure of the device itself, named by what it befell.
type Error struct {
	Op     string // "compile", "alloc", "run", …
	Object string // the kernel's or buffer's label
	Device string
	Cause  error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s %q: %v", e.Device, e.Op, e.Object, e.Cause)
}

func (e *Error) Unwrap() error { return e.Cause }

// Named is cause as an *Error: nil stays nil, and what is named already stays as it is.
func Named(op, object, device string, cause error) error {
	var already *Error
	if cause == nil || errors.As(cause, &already) {
		return cause
	}
	return &Error{Op: op, Object: object, Device: device, Cause: cause}
}

// The causes callers tell apart.
var (
	ErrClosed      = fmt.Errorf("device is closed")
	ErrLost        = fmt.Errorf("device lost")
	ErrOutOfMemory = fmt.Errorf("out of device memory")
	ErrValidation  = fmt.Errorf("validation failed")
	// ErrNoTimestamps is RunTimed's where a device cannot measure.
	ErrNoTimestamps = fmt.Errorf("the device has no timestamps")
)
