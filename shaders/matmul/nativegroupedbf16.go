package matmul

import (
	_ "embed"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

var (
	//go:embed native/groupedbf16.c
	nativeGroupedBF16 string
	//go:embed native/groupedpairs.c
	nativeGroupedPairs string
)

// groupedPairs is a grouped product of bf16 by a matrix unit.
type groupedPairs struct{ pairs }

// groupedPairVariants returns the kernels for grouped products of bf16 by the device's matrix units.
func groupedPairVariants(s Spec, l target.Limits) (ks []Kernel) {
	for _, u := range usableUnits(s, l) {
		ks = append(ks, planGroupedPairs(s, u).kernel())
	}
	return ks
}

func planGroupedPairs(s Spec, u matrixUnit) groupedPairs {
	p := groupedPairs{planPairs(s.evenly(), u)}
	p.spec, p.splits, p.split = s, 1, s.K
	if s.Grouping == graph.GroupedSums { // each group begins at a multiple of what the unit multiplies
		p.padded = roundUp(s.K, u.K) + (s.Groups+1)*u.K
		p.pitch = p.padded
	}
	return p
}

func (p groupedPairs) kernel() Kernel {
	s := p.spec
	k := Kernel{Name: "native " + p.unit.name, Cost: s.flops()/p.unit.speed + 16*float64(s.Groups*roundUp(s.N, p.unit.panel)*p.padded)}
	a, line := Binding{Operand: A}, s.K
	var b Binding
	if s.Grouping == graph.GroupedSums {
		line = roundUp(s.K, 8)
		a = p.transposeA(&k, line, 0)
		b = p.packSums(&k)
	} else {
		b = p.packB(&k, B)
		// Tiles are whole: the rows that a group leaves are computed as a tile's.
		p.spec.M = roundUp(s.M, p.block)
	}
	t := p.text(true)
	t.defineGroups(s)
	p.define(t, line, 0, 0)
	k.Passes = append(k.Passes, t.pass(p.unit.code+nativeBF16Tile+nativeGroups+nativeGroupedBF16,
		native{spec: s, columns: p.columns, splits: 1}.groupCount(p.rows), a, b, Binding{Operand: C}, Binding{Operand: Offsets}))
	return k
}

// packSums adds the pass that packs B for sums over groups, and returns where the panels lie.
func (p groupedPairs) packSums(k *Kernel) Binding {
	const columns = 256
	column := ceilDiv(p.spec.N, columns)
	steps := packSteps(p.padded, column)
	to := k.scratch(2 * p.panels())
	t := p.text(false)
	t.defineGroups(p.spec)
	t.define("GRAIN", p.unit.K)
	t.define("PACK_COLUMNS", columns)
	t.define("PACK_STEPS", steps)
	k.Passes = append(k.Passes, t.pass(nativeGroups+nativeGroupedPairs, column*ceilDiv(p.padded, steps), Binding{Operand: B}, to,
		Binding{Operand: Offsets}))
	return to
}
