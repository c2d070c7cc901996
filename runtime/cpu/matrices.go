//go:build linux && cgo

package cpu

/*
#include <sys/syscall.h>
#include <unistd.h>

// gp_amx_permission asks the system to let this process use the tile registers of AMX, and reports whether it does. The
// permission holds for all threads. Kernels configure the registers of their thread and release them.
static int gp_amx_permission(void) {
#ifdef __x86_64__
	const long request = 0x1023, tile_data = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
	return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
	return 0;
#endif
}
*/
import "C"

import (
	"context"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// matrixInstructions are the instructions that multiply matrices: the CPU's features that they need, and a statement
// that compiles where the compiler and its flags allow them.
var matrixInstructions = []struct {
	target.CooperativeMatrix
	features []string // in /proc/cpuinfo
	trial    string
	allowed  func() bool // by the system; nil: always
}{
	{target.AMX, []string{"amx_tile", "amx_bf16", "avx512f"}, `__asm__ volatile("tdpbf16ps %tmm0, %tmm1, %tmm2");`,
		func() bool { return C.gp_amx_permission() != 0 }},
	{target.AVX512, []string{"avx512f", "avx512_bf16", "avx512dq", "avx512bw"}, // the latter two for attention: vreduceps, vpermw
		`vecf x = {0}; __asm__ volatile("vdpbf16ps %0, %0, %0" : "+v"(x) : "v"((char __attribute__((vector_size(64)))){0}));`, nil},
	{target.NEON, []string{"asimd", "bf16"}, `__asm__ volatile("bfdot v0.4s, v1.8h, v2.8h" : : : "v0");`, nil},
}

// matrices returns the products that kernels may use: the CPU computes them, the compiler with its flags knows the
// instruction, and the system permits it.
func matrices(m machine, c *cc.Compiler) (all []target.CooperativeMatrix) {
	features := strings.Fields(m.features)
	for _, i := range matrixInstructions {
		lacks := func(feature string) bool { return !slices.Contains(features, feature) }
		if slices.ContainsFunc(i.features, lacks) || !compiles(c, i.trial) || i.allowed != nil && !i.allowed() {
			continue
		}
		all = append(all, i.CooperativeMatrix)
	}
	return all
}

// compiles reports whether the compiler accepts a statement.
func compiles(c *cc.Compiler, statement string) bool {
	unit, symbol := native.Unit(target.C+"\nKERNEL { "+statement+" }\n", cc.Unit)
	return c.Accepts(context.Background(), unit, symbol)
}
