package matmul

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
)

// vectorRows is the largest number of rows for which vectorVariants returns kernels: generation with a small batch.
const vectorRows = 8

// vectorVariants returns kernels for few rows, where reading B once is all the work: the invocations of a
// workgroup share a column's sum. They lie along the contiguous axis of B, so that reads coalesce.
func vectorVariants(s Spec, l target.Limits) []Kernel {
	if s.M > vectorRows || s.TypeC.Float16() {
		return nil
	}
	var ks []Kernel
	for _, shape := range [][2]int{{8, 32}, {32, 8}, {4, 16}, {64, 1}, {16, 4}} {
		kx, cx := shape[0], shape[1] // invocations a column, columns a workgroup
		if kx*cx > min(l.MaxInvocations, l.MaxWorkgroupSize[0]) || 4*kx*cx > l.MaxWorkgroupMemory || s.TransB == (cx > kx) {
			continue
		}
		ks = append(ks, vector(s, l, kx, cx))
	}
	return ks
}

func vector(s Spec, l target.Limits, kx, cx int) Kernel {
	size := kx * cx
	g := newSource(s, false, false, false)
	g.line("var<workgroup> part: array<f32, %d>;", size)
	groups := g.main([2]int{size, 1}, [3]int{ceilDiv(s.N, cx), s.M, s.Batch}, l, false)
	if s.TransB {
		g.line("let kl = l.x %% %du; let cl = l.x / %du;", kx, kx)
	} else {
		g.line("let kl = l.x / %du; let cl = l.x %% %du;", cx, cx)
	}
	g.line("let b = tz; let i = ty; let j = tx * %du + cl; let jj = min(j, %du);", cx, s.N-1)
	g.steps()
	g.line("var s = 0.0;")
	g.line("for (var k = kl; k < %du; k += %du) { s += %s * %s; }", s.K, kx, g.a.read(s.indexA("i")), g.b.read(s.indexB("jj")))
	g.line("part[kl * %du + cl] = s;", cx)
	g.line("workgroupBarrier();")
	g.line("if (kl == 0u && j < %du) {", s.N)
	g.line("var sum = s;")
	g.line("for (var p = 1u; p < %du; p++) { sum += part[p * %du + cl]; }", kx, cx)
	g.line("mm_c[(b * %du + i) * %du + j] = %s;\n}", s.M, s.N, g.value("sum", "i", "j"))
	waves := ceilDiv(s.Batch*s.M*ceilDiv(s.N, cx), fillTiles)
	return Kernel{
		Name:   fmt.Sprintf("vector %dx%d", kx, cx),
		Cost:   float64(waves) * float64(ceilDiv(s.K, kx)+kx+64) * float64(size) * 2,
		Passes: []Pass{g.pass([3]int{size, 1, 1}, groups, 4*size)},
	}
}
