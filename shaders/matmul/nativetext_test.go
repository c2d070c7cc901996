package matmul

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph/target"
	translator "github.com/gpupipe/gpupipe/shaders/native"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A text of a product serves all shapes: what is compiled does not depend on sizes, nor on the epilogue.
func TestNativeTextsServeAllShapes(t *testing.T) {
	l := target.Limits{Native: true, Cooperative: []target.CooperativeMatrix{target.AVX512}}
	for _, bf16 := range []bool{false, true} {
		for trans := range 4 {
			texts := map[string]bool{}
			for _, d := range [][3]int{{2048, 128, 352}, {2048, 352, 128}, {100, 4096, 4096}, {64, 48, 2000}, {31, 33, 65}, {11, 1, 3}} {
				for _, epilogue := range []func([]Binding) (string, []int){nil, testEpilogue(F32)} {
					s := Spec{Batch: 1, M: d[0], N: d[1], K: d[2], TransA: trans&1 != 0, TransB: trans&2 != 0, EpilogueC: epilogue}
					if bf16 {
						s.TypeA, s.TypeB = BF16, BF16
					}
					for _, k := range Variants(s, l) {
						for _, p := range k.Passes {
							source, err := translator.Parse(p.WGSL)
							require.NoError(t, err)
							texts[source.Kernel] = true
						}
					}
				}
			}
			// The naive one, products with A packed or not, the pass that packs B, that which adds parts; of bf16 these by the
			// instruction too, and the pass that transposes A.
			assert.LessOrEqual(t, len(texts), map[bool]int{false: 5, true: 7}[bf16], "transposes %d, bf16 %v", trans, bf16)
		}
	}
}
