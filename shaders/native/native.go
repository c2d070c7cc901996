// Package native writes kernels in C, for devices that are the cores of a CPU.
//
// [Kernel] and [Function] print code of package scalar. Templates are C from the start. [Unit] is what a compiler gets:
// it begins with types and with WGSL's built-in functions.
package native

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
)

//go:embed prelude.h
var prelude string

// Unit returns the translation unit of a kernel in C and the name of its function, which differs from those of other
// kernels. Compilers call the unit's file by the given name, and its first line is the source's.
func Unit(source, file string) (unit, symbol string) {
	sum := sha256.Sum256([]byte(prelude + source))
	symbol = "gp_" + hex.EncodeToString(sum[:8])
	return fmt.Sprintf("%s\n#define KERNEL void %s(const gp_arg *args, u32 first, u32 last, const u32 *grid)\n#line 1 %q\n%s",
		prelude, symbol, file, source), symbol
}
