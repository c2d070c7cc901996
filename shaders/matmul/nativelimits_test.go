package matmul

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/stretchr/testify/assert"
)

// Sizes of groups, blocks and passes are multiples of the sizes that they are made of, and depend on the shape alone.
func TestNativeKernelsKeepTheirLimits(t *testing.T) {
	l := target.Limits{Native: true, Cooperative: []target.CooperativeMatrix{target.AMX, target.AVX512, target.NEON}}
	specs := nativeSpecs(l)
	for _, s := range benchSpecs {
		specs = append(specs, s.Spec)
	}
	for _, s := range append(specs, Spec{Product: Product{Batch: 1, M: 384, N: 1536, K: 2048},
		Epilogue: Epilogue{Declare: testEpilogue(F32)}}, Spec{Product: Product{Batch: 70, M: 700, N: 129, K: 8}},
		Spec{Product: Product{Batch: 1, M: 4096, N: 50000, K: 576, TransB: true}}) {
		ks := Variants(s, l)
		assert.Equal(t, "naive", ks[0].Name)
		names := map[string]bool{}
		for i, k := range ks {
			assert.False(t, names[k.Name], "%s twice", k.Name)
			names[k.Name] = true
			assert.True(t, i < 2 || ks[i-1].Cost <= k.Cost, "order of cost")
			for _, p := range k.Passes {
				assert.True(t, strings.HasPrefix(p.Source(), target.C+"\n"))
				own := 3
				if s.Grouping != graph.Ungrouped {
					own = 4
				}
				if p.Bindings[0].Operand == A && p.Bindings[1].Operand == C {
					assert.True(t, s.Shared, "A and B are one")
					assert.Len(t, p.Bindings, own-1)
				} else {
					assert.True(t, len(p.Bindings) == own || p.Epilogue == nil, "the epilogue's bindings follow")
				}
				for _, b := range p.Bindings {
					assert.Zero(t, b.Offset%256, k.Name)
					assert.LessOrEqual(t, b.Offset+b.Size, k.Scratch, k.Name)
				}
			}
		}
		if s.Grouping != graph.Ungrouped {
			p := planGrouped(s)
			assert.LessOrEqual(t, 4*(p.block*p.steps+p.block*p.columns), 256<<10, "bytes on the stack of a thread")
			terms := planGroupedTerms(s)
			assert.Zero(t, terms.rows%terms.block+terms.block%cellSide+terms.columns%cellSide+terms.steps%cellSide, "%+v", s)
			assert.LessOrEqual(t, (terms.block+cellSide)*terms.steps/cellSide/cellSide*cellBytes+4*terms.block*terms.columns, 512<<10,
				"bytes on the stack, %+v", s)
			continue
		}
		for _, u := range matrixUnits {
			p := planPairs(s, u)
			assert.Zero(t, p.rows%p.block+p.columns%panelColumns+p.steps%32, "%s %+v", u.name, s)
			assert.True(t, p.splits == 1 || p.split%32 == 0 && p.split*(p.splits-1) < s.K)
			assert.LessOrEqual(t, 2*p.block*(p.steps+pairPad)+4*p.block*p.columns, 100<<10, "bytes on the stack")
		}
		p := planTerms(s)
		assert.Zero(t, p.rows%p.block+p.block%cellSide+p.columns%cellSide+p.steps%cellSide, "%+v", s)
		assert.True(t, p.splits == 1 || p.split%cellSide == 0 && p.split*(p.splits-1) < s.K)
		bytes := (p.block + cellSide) * p.steps / cellSide / cellSide * cellBytes
		switch {
		case p.splits == 1 && s.Declare == nil && s.M%16 == 0 && s.N%16 == 0:
		case p.split <= p.steps:
			bytes += 4 * p.block * cellSide
		default:
			bytes += 4 * p.block * p.columns
		}
		assert.LessOrEqual(t, bytes, 512<<10, "bytes on the stack of a thread, %+v", s)
		n := planNative(s)
		assert.Zero(t, n.block%n.rows+n.rows%tileRows+n.columns%panelColumns)
		stack := 0 // floats
		if n.packA {
			stack += n.block * n.steps
		}
		if inPlace := (s.Declare == nil || n.splits > 1) && s.N%16 == 0 && (s.N%1024 > 0 || n.split <= n.steps); !inPlace {
			stack += n.block * n.columns
		}
		assert.LessOrEqual(t, 4*stack, 256<<10, "bytes on the stack of a thread")
		assert.GreaterOrEqual(t, n.count(n.rows), min(leastGroups/2, int(s.flops()/groupFlops)), "%+v", s)
	}
}
