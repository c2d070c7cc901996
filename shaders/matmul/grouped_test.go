package matmul

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// groupRows returns the numbers of rows of a Spec's groups: of the first all that the others leave, none in every
// third, and in others one, or about the rows of a tile.
func groupRows(s Spec) (rows []int) {
	if s.Grouping == graph.Ungrouped {
		return nil
	}
	left := s.M
	if s.Grouping == graph.GroupedSums {
		left = s.K
	}
	rows = make([]int, s.Groups)
	for e := s.Groups - 1; e > 0; e-- {
		rows[e] = min([...]int{0, 1, 31, 0, 24, 35}[e%6], left)
		left -= rows[e]
	}
	rows[0] = left
	return rows
}

func offsetsOf(rows []int) []uint32 {
	offsets := []uint32{0}
	for _, n := range rows {
		offsets = append(offsets, offsets[len(offsets)-1]+uint32(n))
	}
	return offsets
}

// groupedReference computes each group as a product of its own.
func groupedReference(s Spec, a, b, bias []float32, rows []int) (want []float64) {
	from := 0
	for e, n := range rows {
		one := s
		one.Grouping, one.Batch, one.BatchStrideA, one.BatchStrideB = graph.Ungrouped, 1, 0, 0
		x, y := a, b
		if s.Grouping == graph.GroupedRows {
			one.M, x, y = n, a[from*s.K:], b[e*s.BatchStrideB:]
		} else {
			one.K, x, y = n, a[from*s.M:], b[from*s.N:]
		}
		sums := one
		sums.Declare = nil
		for i, v := range reference(sums, x, y, nil) {
			if s.Declare != nil { // that of testEpilogue
				row, matrix := from+i/s.N, 0
				if s.Grouping == graph.GroupedSums {
					row, matrix = i/s.N, e
				}
				v = 2*v + float64(row) + 100*float64(matrix) + float64(bias[i%s.N])
			}
			want = append(want, v)
		}
		from += n
	}
	return want
}

// groupedSpecs are grouped products: one group, groups without rows, edges of tiles, epilogues and 16-bit floats.
func groupedSpecs() (out []Spec) {
	for n, d := range []struct{ rows, n, k, groups int }{
		{1, 1, 1, 1}, {130, 70, 33, 1}, {200, 64, 40, 8}, {97, 33, 129, 5}, {300, 36, 1100, 3}, {40, 80, 24, 7}, {3, 20, 50, 4},
	} {
		for kind := range 3 {
			s := Spec{Product: Product{Batch: 1, M: d.rows, N: d.n, K: d.k, Groups: d.groups, Grouping: graph.GroupedRows,
				TransB: kind == 1}}
			if d.groups > 1 {
				s.BatchStrideB = d.n * d.k
			}
			if kind == 2 {
				s = Spec{Product: Product{Batch: d.groups, M: d.k, N: d.n, K: d.rows, Groups: d.groups, Grouping: graph.GroupedSums,
					TransA: true}}
			}
			s.TypeA = [...]Element{F32, BF16, F16, BF16}[(n+kind)%4]
			s.TypeB = s.TypeA
			if (n+kind)%2 == 0 {
				s.TypeC = [...]Element{F32, BF16}[(n+kind)/2%2]
				if s.Batch*s.M*s.N%2 != 0 {
					s.TypeC = F32
				}
				s.Declare = testEpilogue(s.TypeC)
			}
			out = append(out, s)
		}
	}
	// Products of f32 of which AMX computes the terms: rows and k's that are no multiples of a tile's, in C and in a
	// block.
	for _, d := range []struct{ rows, n, k, groups int }{{330, 64, 96, 5}, {260, 80, 1100, 3}} {
		for kind := range 6 { // without and with an epilogue
			s := Spec{Product: Product{Batch: 1, M: d.rows, N: d.n, K: d.k, Groups: d.groups, Grouping: graph.GroupedRows,
				TransB: kind%3 == 1, BatchStrideB: d.n * d.k}}
			if kind%3 == 2 {
				s = Spec{Product: Product{Batch: d.groups, M: d.k, N: d.n, K: d.rows, Groups: d.groups, Grouping: graph.GroupedSums,
					TransA: true}}
			}
			if kind >= 3 {
				s.Declare = testEpilogue(F32)
			}
			out = append(out, s)
		}
	}
	return out
}

// groupedCases are grouped products on GPUs, with and without epilogues.
func groupedCases(limits ...target.Limits) (out []testCase) {
	for n, d := range []struct{ rows, n, k, groups int }{{130, 36, 40, 6}, {70, 64, 33, 1}, {200, 35, 20, 8}} {
		for kind := range 3 {
			s := Spec{Product: Product{Batch: 1, M: d.rows, N: d.n, K: d.k, Groups: d.groups, Grouping: graph.GroupedRows,
				TransB: kind == 1}}
			if d.groups > 1 {
				s.BatchStrideB = d.n * d.k
			}
			if kind == 2 {
				s = Spec{Product: Product{Batch: d.groups, M: d.k, N: d.n, K: d.rows, Groups: d.groups, Grouping: graph.GroupedSums,
					TransA: true}}
			}
			if (n+kind)%2 == 1 {
				s.Declare = biased
			}
			out = append(out, testCase{fmt.Sprintf("grouped %d", len(out)), s, limits[n%len(limits)]})
		}
	}
	return out
}

// bitsOf returns numbers whose bits are the integers.
func bitsOf(x []uint32) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = math.Float32frombits(v)
	}
	return out
}
