// Package cpu is a device that runs native code on the cores of a CPU.
//
// A program's shaders are C. Package cc compiles each into a shared library, which the process loads. A run is one
// call into C: a pool of threads (pool.c) runs the program's commands one after another, and the threads share the
// workgroups of each. Workgroups are independent, so results do not depend on the number of threads.
//
// The C of a kernel begins with target.C and defines its function by the macro KERNEL, which stands for
//
//	void name(const gp_arg *args, u32 first, u32 last, const u32 *grid)
//
// It runs the workgroups first … last−1 of a dispatch of grid[0]·grid[1]·grid[2]; workgroup (x, y, z) is number
// x + grid[0]·(y + grid[1]·z). Binding i is args[i]. The prelude of package native declares the types.
package cpu

import (
	"errors"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// ErrSystem is the error of a system on which there is no such device.
var ErrSystem = errors.New("native code on CPUs is for Linux, and needs a program that was built with cgo")

// Options of a device.
type Options struct {
	Index        int         // 0: there is one CPU
	Threads      int         // that run a program's workgroups; 0: as many as the process may use cores
	MemoryBudget int64       // bytes of buffers; 0: three quarters of the host's memory
	Dump         device.Dump // receives the kernels that are loaded; nil: they are not dumped
	// CacheDir is a folder for compiled kernels, to which only the user may write. "": nothing is kept for later
	// processes. MakeCache prepares it.
	CacheDir string
	Compiler string   // command of the C compiler; "": the first that exists of $CC, cc, gcc and clang
	CFlags   []string // of the compiler, after the device's own, so that -O1 replaces its -O2
	// Toolchain is the compiler with its cache. nil: Open finds it by CacheDir, Compiler and CFlags, which count only
	// then.
	Toolchain *Toolchain
}
