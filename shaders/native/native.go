// Package native writes kernels in C, for devices that are the cores of a CPU.
//
// [Kernel] and [Function] print code of package scalar. Templates are C from the start. [Unit] is what a compiler gets: it
// begins with types and with WGSL's built-in functions. [Beside] makes one unit of several kernels.
package native

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
)

//go:embed prelude.h
var prelude string

// Prelude returns what every unit begins with.
func Prelude() string { return prelude }

// Unit returns the translation unit of a kernel in C and the name of its function, which differs from those of other
// kernels. Compilers call the unit's file by the given name, and its first line is the source's.
func Unit(source, file string) (unit, symbol string) {
	sum := sha256.Sum256([]byte(prelude + source))
	symbol = "gp_" + hex.EncodeToString(sum[:8])
	return prelude + "\n" + definition(source, file, symbol), symbol
}

// definition returns what follows the prelude.
func definition(source, file, symbol string) string {
	return fmt.Sprintf("#define KERNEL void %s(const gp_arg *args, u32 first, u32 last, const u32 *grid)\n#line 1 %q\n%s", symbol, file, source)
}
