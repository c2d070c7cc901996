// Package device defines what the rest of gpupipe knows about a GPU: memory, programs that are data, and a queue that
// runs them in order. Backends implement Device; only commands name a backend.
//
// A user of a device allocates buffers, describes a Program, loads it once and runs it many times. Write, Run and Read
// enqueue work; Pending.Wait and Device.Sync wait for it. Checker holds every rule for programs, so all backends refuse
// the same mistakes.
package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

// Kind is the sort of hardware behind an adapter.
type Kind string

const (
	Discrete   Kind = "discrete"
	Integrated Kind = "integrated"
	Virtual    Kind = "virtual"
	CPU        Kind = "cpu"      // a CPU that runs native code
	Software   Kind = "software" // a CPU that implements a GPU API: lavapipe, SwiftShader, WARP
	Null       Kind = "null"     // executes nothing
)

// Order is the position of the kind where adapters are listed: GPUs come first.
func (k Kind) Order() int {
	return slices.Index([]Kind{Discrete, Integrated, Virtual, CPU, Software, Null}, k)
}

// GPU reports whether the kind is hardware for a GPU's API.
func (k Kind) GPU() bool { return k.Order() < CPU.Order() }

// Vendor returns the name of a vendor from its PCI or Khronos number; "" if it is unknown.
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
	Driver  string `json:"driver,omitempty"` // name and version, as the driver reports them
	API     string `json:"api,omitempty"`    // "vulkan", "metal", "dx12", "native"
	Kind    Kind   `json:"kind"`
	Threads int    `json:"threads,omitempty"` // of native code on a CPU. Times depend on it, results do not
}

// Hardware returns the adapter's name, with the number of threads if it has one.
func (i Info) Hardware() string {
	switch i.Threads {
	case 0:
		return i.Adapter
	case 1:
		return i.Adapter + ", 1 thread"
	}
	return fmt.Sprintf("%s, %d threads", i.Adapter, i.Threads)
}

// Device is one GPU: memory and one in-order queue. All methods are safe for concurrent use, and work runs in the order
// in which it was enqueued. Pending.Wait and Sync wait for the GPU. Run, Write and Read wait only while so much work is
// in progress that memory would grow.
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
	// Allocated returns the bytes of all live buffers that Alloc made, and of staging buffers.
	Allocated() (buffers, staging int64)
	// Close releases everything. Later calls return ErrClosed. So may a Load in progress, which does not finish
	// compiling its kernels.
	Close() error
}

// Budget returns the bytes of memory that a device may take, or 0 if that is unknown.
func Budget(d Device) int64 {
	if b, ok := d.(interface{ Budget() int64 }); ok {
		return b.Budget()
	}
	return 0
}

// Buffer is a range of device memory. Only the Device that made it accepts it.
type Buffer interface {
	Label() string
	Size() int64
	Release()
}

// Loaded is a program that a device has compiled and bound.
type Loaded interface{ Release() }

// Pending is a read in progress.
type Pending interface {
	// Wait returns the bytes when the read is complete. The caller owns them.
	Wait() ([]byte, error)
}

// Program is a recorded list of commands. It is data that any backend can load.
type Program struct {
	Label    string
	Shaders  []Shader
	Commands []Command
}

// Shader is one compute kernel. Its entry point is main; its bindings are group 0, 0…n−1, all storage buffers.
type Shader struct {
	Label           string // names the kernel in every error
	Source          string // WGSL; or SPIR-V assembly or C, if Limits allow it, which begin with target.Assembly and target.C
	Bindings        []Access
	Workgroup       [3]int
	WorkgroupMemory int // bytes
	// Inside promises that no index leaves its array, of a binding or of the source itself, whatever the data. Devices
	// need not check indices then.
	Inside bool
}

// Assembly reports whether the source is SPIR-V assembly.
func (s *Shader) Assembly() bool { return strings.HasPrefix(s.Source, target.Assembly) }

// C reports whether the source is C.
func (s *Shader) C() bool { return strings.HasPrefix(s.Source, target.C) }

// Access is how a shader declares a binding.
type Access uint8

const (
	ReadWrite Access = iota // var<storage, read_write>
	ReadOnly                // var<storage, read>
)

// Command is a dispatch if Shader ≥ 0. Otherwise it copies Args[0] to Args[1], which have equal sizes and do not
// overlap but may lie in one buffer. A dispatch that binds a buffer several times binds it read-only each time, or
// writable each time at ranges that do not overlap.
type Command struct {
	Shader int
	Args   []Range
	Groups [3]int
}

// Copy marks a Command that copies.
const Copy = -1

// Range is a range of bytes in a buffer.
type Range struct {
	Buffer       Buffer
	Offset, Size int64
}

// Error is an error of a device with the operation and the object that it concerns.
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

// Named returns cause as an *Error. A nil cause stays nil, and a cause that is an *Error already stays as it is.
func Named(op, object, device string, cause error) error {
	var already *Error
	if cause == nil || errors.As(cause, &already) {
		return cause
	}
	return &Error{Op: op, Object: object, Device: device, Cause: cause}
}

// Causes that callers distinguish with errors.Is.
var (
	ErrClosed      = fmt.Errorf("device is closed")
	ErrLost        = fmt.Errorf("device lost")
	ErrOutOfMemory = fmt.Errorf("out of device memory")
	ErrValidation  = fmt.Errorf("validation failed")
	// ErrNoTimestamps is returned by RunTimed on a device that cannot measure.
	ErrNoTimestamps = fmt.Errorf("the device has no timestamps")
)
