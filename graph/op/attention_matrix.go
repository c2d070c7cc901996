package op

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// matrixKernel is a kernel of the kind matrices: subgroups multiply matrices of 16-bit floats and accumulate in f32. A
// workgroup computes a block of rows, Size.M for each subgroup, and iterates over the columns in tiles. The subgroups
// store scores to workgroup memory, where lanes turn them into probabilities. The probabilities and the gradient of o
// are rounded to the operands' dtype.
type matrixKernel struct {
	attentionKernels
	Size     target.CooperativeMatrix
	Subgroup int // lanes of a subgroup
	Bands    int // subgroups of a workgroup
	Cols     int // columns of a tile, a multiple of Size.N and Size.K
}

// maxMatrixDim is the largest head dimension. A subgroup holds matrices of up to twice as many columns in registers.
const maxMatrixDim = 128

// unsupportedSubgroup is a subgroup size whose lanes have too few registers for the results: Intel's Xe-HPG spills
// most of them and compiles for minutes.
const unsupportedSubgroup = 8

// matrixKernel returns the kernel with the largest blocks that fits the device; ok is false if none does. memory
// returns a kernel's bytes of workgroup memory.
func (k attentionKernels) matrixKernel(l target.Limits, memory func(matrixKernel) int) (matrixKernel, bool) {
	size, ok := l.LargestCooperative(k.operands.String())
	side := max(size.N, size.K)
	if !ok || l.SubgroupSize == 0 || l.SubgroupSize == unsupportedSubgroup || k.dim%side != 0 || k.dim > maxMatrixDim || k.position {
		return matrixKernel{}, false
	}
	for _, bands := range []int{4, 2, 1} {
		for _, tiles := range []int{2, 1} {
			m := matrixKernel{k, size, l.SubgroupSize, bands, tiles * side}
			if m.Lanes() <= l.MaxInvocations && memory(m) <= l.MaxWorkgroupMemory {
				return m, true
			}
		}
	}
	return matrixKernel{}, false
}

// matrixTolerance is the error of products whose operands, including probabilities, are rounded to 16-bit floats.
func (k attentionKernels) matrixTolerance() float64 {
	if k.operands == graph.BF16 {
		return 1.0 / 64
	}
	return 1.0 / 512
}

func (k attentionKernels) matrixForward(l target.Limits) []graph.Variant {
	m, ok := k.matrixKernel(l, matrixKernel.forwardMemory)
	if !ok {
		return nil
	}
	return []graph.Variant{{Name: "matrices", Tolerance: k.matrixTolerance(), Passes: []graph.Pass{m.forward()}}}
}

func (k attentionKernels) matrixBackward(l target.Limits, scratch []graph.Type) []graph.Variant {
	q, ok := k.matrixKernel(l, matrixKernel.queryGradMemory)
	if !ok {
		return nil
	}
	j, ok := k.matrixKernel(l, matrixKernel.keyGradMemory)
	if !ok {
		return nil
	}
	return []graph.Variant{{Name: "matrices", Tolerance: k.matrixTolerance(), Scratch: scratch,
		Passes: []graph.Pass{k.delta(), q.queryGrad(), j.keyGrad()}}}
}

func (m matrixKernel) Lanes() int { return m.Bands * m.Subgroup }
func (m matrixKernel) Rows() int  { return m.Bands * m.Size.M } // rows of a block

// LanesPerRow is the number of lanes that search a row together for its largest score.
func (m matrixKernel) LanesPerRow() int { return max(m.Subgroup/m.Size.M, 1) }

// Units numbers the matrices that cover a row of results, and Tiles those that cover a row of scores.
func (m matrixKernel) Units() []int { return upTo(m.dim / m.Size.N) }
func (m matrixKernel) Tiles() []int { return upTo(m.Cols / m.Size.N) }

// VectorFactors numbers the matrices that cover a row of vectors as a factor of a product, and WeightFactors those that
// cover a row of weights.
func (m matrixKernel) VectorFactors() []int { return upTo(m.dim / m.Size.K) }
func (m matrixKernel) WeightFactors() []int { return upTo(m.Cols / m.Size.K) }

func (m matrixKernel) QueryBlocks() int { return (m.queries + m.Rows() - 1) / m.Rows() }
func (m matrixKernel) KeyBlocks() int   { return (m.keys + m.Rows() - 1) / m.Rows() }

// Distances between rows in workgroup memory, in 32-bit words. They are multiples of 16 bytes, as loads of matrices
// require, and no multiples of the number of banks, which avoids bank conflicts.
func (m matrixKernel) vectorStride() int { return (m.dim + 8) / 2 }
func (m matrixKernel) scoreStride() int  { return m.Cols + 4 }
func (m matrixKernel) weightStride() int { return (m.Cols + 8) / 2 }

// Bytes of workgroup memory for vectors, scores and weights. Weights are probabilities or their gradients.
func (m matrixKernel) vectors(n int) int { return 4 * n * m.vectorStride() }
func (m matrixKernel) scores() int       { return 4 * m.Rows() * m.scoreStride() }
func (m matrixKernel) weights() int      { return 4 * m.Rows() * m.weightStride() }
func (m matrixKernel) segmentMemory() int {
	if m.segments == "" {
		return 0
	}
	return 4*(m.Rows()+m.Cols) + m.edgeMemory()
}

func (m matrixKernel) forwardMemory() int {
	return m.vectors(m.Rows()+2*m.Cols) + m.scores() + m.weights() + 8*m.Rows()*(m.LanesPerRow()+1) + m.segmentMemory()
}

func (m matrixKernel) queryGradMemory() int {
	return m.vectors(2*m.Rows()+2*m.Cols) + 2*m.scores() + m.weights() + 8*m.Rows() + m.segmentMemory()
}

func (m matrixKernel) keyGradMemory() int {
	return m.vectors(2*m.Rows()+2*m.Cols) + 2*m.scores() + 2*m.weights() + 8*m.Cols + m.segmentMemory()
}

// Stage emits the copy of count vectors to the workgroup array to, from position origin of a sequence of the given
// length on. Vectors after the end of the sequence are zeros. at is the vector's index as an expression of place, its
// position, and value is the expression of the two words that hold the four elements at index at.
func (m matrixKernel) Stage(to, count, origin, length, at, value string) string {
	return fmt.Sprintf(`for (var x = lane; x < %[2]s * QUADS; x += LANES) {
  let place = %[3]s + x / QUADS;
  var words = vec2<f32>();
  if (place < %[4]s) {
    let at = (%[5]s) * QUADS + x %% QUADS;
    words = %[6]s;
  }
  let to = x / QUADS * STRIDE + x %% QUADS * 2u;
  %[1]s[to] = words.x;
  %[1]s[to + 1u] = words.y;
}
`, to, count, origin, length, at, value)
}

// Hold emits the loads of the subgroup's rows of vectors into matrices, which stay in registers.
func (m matrixKernel) Hold(name, array string) string {
	var b strings.Builder
	for _, u := range m.VectorFactors() {
		fmt.Fprintf(&b, "let at_%[1]s%[2]d = mine * STRIDE + %[3]du;\nlet %[1]s%[2]d = coopLoadT<%[4]s>(&%[5]s[at_%[1]s%[2]d], STRIDE);\n",
			name, u, u*m.Size.K/2, m.Size.WGSL("A"), array)
	}
	return b.String()
}

// Scores emits the inner products of the subgroup's rows, which Hold loaded under the name rows, with the columns of a
// tile, and their store to the workgroup array to.
func (m matrixKernel) Scores(to, rows, columns string) string {
	var b strings.Builder
	for _, c := range m.Tiles() {
		fmt.Fprintf(&b, "{\nvar sum = %s();\n", m.Size.WGSL("C"))
		for _, u := range m.VectorFactors() {
			fmt.Fprintf(&b, "{\nlet at = %[1]du * STRIDE + %[2]du;\nlet column = coopLoad<%[3]s>(&%[4]s[at], STRIDE);\nsum = coopMultiplyAdd(%[5]s%[6]d, column, sum);\n}\n",
				c*m.Size.N, u*m.Size.K/2, m.Size.WGSL("B"), columns, rows, u)
		}
		fmt.Fprintf(&b, "let to = mine * SCORES + %du;\ncoopStoreT(sum, &%s[to], SCORES);\n}\n", c*m.Size.N, to)
	}
	return b.String()
}

// Sums declares the matrices that accumulate the subgroup's results.
func (m matrixKernel) Sums(name string) string {
	var b strings.Builder
	for _, u := range m.Units() {
		fmt.Fprintf(&b, "var %s%d = %s();\n", name, u, m.Size.WGSL("C"))
	}
	return b.String()
}

// Add emits the addition of the columns, multiplied by their weights, to the subgroup's results.
func (m matrixKernel) Add(to, weights, columns string) string {
	var b strings.Builder
	for _, c := range m.WeightFactors() {
		fmt.Fprintf(&b, "{\nlet start = mine * WEIGHTS + %[1]du;\nlet weight = coopLoadT<%[2]s>(&%[3]s[start], WEIGHTS);\n", c*m.Size.K/2,
			m.Size.WGSL("A"), weights)
		for _, u := range m.Units() {
			fmt.Fprintf(&b, "{\nlet at = %[1]du * STRIDE + %[2]du;\nlet column = coopLoadT<%[3]s>(&%[4]s[at], STRIDE);\n%[5]s%[6]d = coopMultiplyAdd(weight, column, %[5]s%[6]d);\n}\n",
				c*m.Size.K, u*m.Size.N/2, m.Size.WGSL("B"), columns, to, u)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// Store emits the store of results to global memory, through the workgroup memory of the scores. value is an expression
// of sum, an element of the result, and of row, its row in the block.
func (m matrixKernel) Store(name, to, length, at, value string) string {
	return m.eachMatrix(name, func(u int) string {
		return fmt.Sprintf(`for (var x = lane; x < ROWS * WIDTH; x += LANES) {
  let row = x / WIDTH;
  let place = first + row;
  let sum = ss[row * SCORES + x %% WIDTH];
  if (place < %s) { %s[(%s) * DIM + %du + x %% WIDTH] = %s; }
}
`, length, to, at, u*m.Size.N, value)
	})
}

// StoreResult emits the store of o. 16-bit floats are stored in pairs.
func (m matrixKernel) StoreResult() string {
	const at = "(b * TQ + place) * HEADS + h"
	if !m.result.Float16() {
		return m.Store("o", "$out0", "TQ", at, "sum / sums[row]")
	}
	return m.eachMatrix("o", func(u int) string {
		return fmt.Sprintf(`for (var x = lane; x < ROWS * (WIDTH / 2u); x += LANES) {
  let row = x / (WIDTH / 2u);
  let place = first + row;
  let at = row * SCORES + x %% (WIDTH / 2u) * 2u;
  if (place < TQ) { $out0[(%s) * (DIM / 2u) + %du + x %% (WIDTH / 2u)] = word(ss[at] / sums[row], ss[at + 1u] / sums[row]); }
}
`, at, u*m.Size.N/2)
	})
}

// eachMatrix emits, for each matrix u of a row of results, its store to the workgroup memory of the scores and then the
// code that write returns, which stores it to global memory.
func (m matrixKernel) eachMatrix(name string, write func(u int) string) string {
	var b strings.Builder
	for _, u := range m.Units() {
		fmt.Fprintf(&b, "workgroupBarrier();\n{\nlet to = mine * SCORES;\ncoopStoreT(%s%d, &ss[to], SCORES);\n}\nworkgroupBarrier();\n%s",
			name, u, write(u))
	}
	return b.String()
}
