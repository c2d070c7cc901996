package matmul

import (
	_ "embed"
	"slices"

	"github.com/gpupipe/gpupipe/graph/target"
)

var (
	//go:embed native/amx.c
	nativeAMX string
	//go:embed native/bf16tile.c
	nativeBF16Tile string
	//go:embed native/bf16.c
	nativeBF16 string
	//go:embed native/pairs.c
	nativePairs string
)

// matrixUnit is an instruction of a CPU that multiplies bf16, and how kernels use it.
type matrixUnit struct {
	target.CooperativeMatrix
	name  string
	macro string
	block int     // rows that are computed at a time
	panel int     // columns of a panel of B
	speed float64 // in multiples of the speed of products of f32
	code  string  // of its instructions; "": nativeBF16Tile has it
}

// vectors reports whether the instruction multiplies vectors, not tiles.
func (u matrixUnit) vectors() bool { return u.code == "" }

var matrixUnits = []matrixUnit{
	{target.AMX, "amx bf16", "UNIT_AMX", 32, 32, 6, nativeAMX},
	{target.AVX512, "avx512 bf16", "UNIT_AVX512", 24, 32, 1.5, ""}, // of AMD's; see pairVariants
	{target.NEON, "neon bf16", "UNIT_NEON", 24, 8, 1.5, ""},
}

// pairs is the product of bf16 by a matrix unit, cut into groups as other products are.
type pairs struct {
	native
	unit   matrixUnit
	padded int // k's of a panel: K and zeros
	pitch  int // k's between the beginnings of panels
}

const (
	pairSteps     = 512     // k's of a block
	pairColumns   = 512     // of a group at most
	cachedPairs   = 1 << 19 // elements of B that rows of groups share in a core's cache
	packedColumns = 1024    // that a group packs at most, whose rows it reads in order
	pairPad       = 32      // elements between the rows of a block of A in different sets of a cache
)

// pairVariants returns the kernels for products of bf16 by the instructions among the device's cooperative matrices.
func pairVariants(s Spec, l target.Limits) []Kernel {
	var ks []Kernel
	for _, u := range usableUnits(s, l) {
		ks = append(ks, planPairs(s, u).kernel())
	}
	return ks
}

// usableUnits returns the device's matrix units if the operands are of bf16.
func usableUnits(s Spec, l target.Limits) (units []matrixUnit) {
	if s.TypeA != BF16 || s.TypeB != BF16 {
		return nil
	}
	for _, u := range matrixUnits {
		if !slices.Contains(l.Cooperative, u.CooperativeMatrix) {
			continue
		}
		// Intel's cores, which have AMX too, start such an instruction every other cycle, but two sums of f32 each
		// cycle.
		if u.CooperativeMatrix == target.AVX512 && slices.Contains(l.Cooperative, target.AMX) {
			u.speed = 0.6
		}
		units = append(units, u)
	}
	return units
}

func planPairs(s Spec, u matrixUnit) pairs {
	p := pairs{native{spec: s, block: u.block, split: s.K, splits: 1}, u, roundUp(s.K, u.K), roundUp(s.K, u.K)}
	if u.vectors() && s.K%32 == 0 {
		p.pitch += u.K // so that panels do not lie at the same place of a cache's sets
	}
	want := s.wantedGroups(u.speed)
	p.columns = p.evenly(s.N, min(pairColumns, max(128, cachedPairs/s.K)))
	if g := p.count(p.block); g < min(want, leastGroups) && s.K >= 2*pairSteps {
		p.split = roundUp(ceilDiv(s.K, min(ceilDiv(leastGroups, g), s.K/pairSteps)), 32)
		p.splits = ceilDiv(s.K, p.split)
	}
	p.steps = roundUp(ceilDiv(p.split, ceilDiv(p.split, pairSteps)), 32)
	p.rows = roundUp(ceilDiv(s.M, ceilDiv(want, p.count(s.M))), p.block)
	return p
}

// cost estimates the multiplications and, as so many of them, the packing of the operands.
func (p pairs) cost() float64 {
	s := p.spec
	cost := s.flops() / p.unit.speed * float64(p.padded) / float64(s.K) * float64(roundUp(s.M, p.unit.M)) / float64(s.M)
	packed := s.K * s.N
	if s.TransA {
		packed += s.K * s.M
	}
	return cost + 16*float64(s.Batch*packed)
}

func (p pairs) kernel() Kernel {
	s := p.spec
	k := Kernel{Name: "native " + p.unit.name, Cost: p.cost()}
	a, line, matrixA := Binding{Operand: A}, s.K, s.BatchStrideA
	packed := s.TransA && p.unit.vectors()
	switch {
	case packed:
		turned := p.turned()
		a = turned.packB(&k, A)
		if s.BatchStrideA > 0 {
			matrixA = turned.panels()
		}
	case s.TransA:
		line = roundUp(s.K, 8)
		matrixA = s.M * line
		if s.BatchStrideA == 0 {
			matrixA = 0
		}
		a = p.transposeA(&k, line, matrixA)
	}
	b := p.packB(&k, B)
	c, part := p.sums(&k)
	t := p.text(p.splits == 1)
	t.define("PACKED_A", packed)
	p.define(t, line, matrixA, part)
	k.Passes = append(k.Passes, t.pass(p.unit.code+nativeBF16Tile+nativeBF16, p.count(p.rows), a, b, c))
	if p.splits > 1 {
		k.Passes = append(k.Passes, p.reduce(part, c))
	}
	return k
}

// define adds the sizes of the product; A has rows of line elements.
func (p pairs) define(t *text, line, matrixA, part int) {
	t.define(p.unit.macro, 1)
	t.define("GRAIN", p.unit.K)
	t.define("LINE", line)
	t.define("MATRIX_A", matrixA)
	t.define("PART", part)
	t.define("ROWS", p.rows)
	t.define("COLUMNS", p.columns)
	t.define("BLOCK", p.block)
	t.define("STEPS", p.steps)
	t.define("PITCH", p.steps+pairPad)
	t.define("SPLIT", p.split)
}

// text is the beginning of a pass's text.
func (p pairs) text(store bool) *text {
	t := nativeText(p.spec, store)
	t.define("PANEL", p.unit.panel)
	t.define("PADDED", p.padded)
	t.define("PANEL_PITCH", p.pitch)
	t.define("PANELS", p.panels())
	return t
}

// panels is the number of elements of a matrix's panels, with what lies between them.
func (p pairs) panels() int { return roundUp(p.spec.N, p.unit.panel) * p.pitch }

// turned is the product whose B is this one's A, with panels of a block's rows.
func (p pairs) turned() pairs {
	s := p.spec
	p.spec = Spec{Product: Product{Batch: s.Batch, M: s.N, N: s.M, K: s.K, TypeA: s.TypeB, TypeB: s.TypeA, BatchStrideB: s.BatchStrideA}}
	p.unit.panel = p.unit.block
	return p
}

// packB adds the pass that packs B, which is an operand of the kernel, and returns where the panels lie.
func (p pairs) packB(k *Kernel, operand Operand) Binding {
	s, matrices := p.spec, p.spec.matricesB()
	columns := 256
	if p.unit.vectors() {
		columns = roundUp(ceilDiv(s.N, ceilDiv(s.N, packedColumns)), p.unit.panel)
	}
	steps := packSteps(s.K, matrices*ceilDiv(s.N, columns))
	to := k.scratch(2 * p.panels() * matrices)
	t := p.text(false)
	t.define("PACK_COLUMNS", columns)
	t.define("PACK_STEPS", steps)
	k.Passes = append(k.Passes, t.pass(nativePairs, matrices*ceilDiv(s.N, columns)*ceilDiv(p.padded, steps), Binding{Operand: operand}, to))
	return to
}

// transposeA adds the pass that transposes A, and returns where its rows lie, of line elements each.
func (p pairs) transposeA(k *Kernel, line, matrix int) Binding {
	s, matrices := p.spec, 1
	if matrix > 0 {
		matrices = s.Batch
	}
	const rows = 64
	steps := packSteps(s.K, matrices*ceilDiv(s.M, rows))
	to := k.scratch(2 * s.M * line * matrices)
	t := p.text(false)
	t.define("PACK_A", true)
	t.define("LINE", line)
	t.define("MATRIX_A", matrix)
	t.define("PACK_ROWS", rows)
	t.define("PACK_STEPS", steps)
	k.Passes = append(k.Passes, t.pass(nativePairs, matrices*ceilDiv(s.M, rows)*ceilDiv(s.K, steps), Binding{Operand: A}, to))
	return to
}
