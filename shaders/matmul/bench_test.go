package matmul

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

type benchSpec struct {
	name string
	Spec
}

var benchSpecs = []benchSpec{
	{"1024 NN", Spec{Product: Product{Batch: 1, M: 1024, N: 1024, K: 1024}}},
	{"1024 NT", Spec{Product: Product{Batch: 1, M: 1024, N: 1024, K: 1024, TransB: true}}},
	{"384x1536x2048", Spec{Product: Product{Batch: 1, M: 384, N: 1536, K: 2048}}},
	{"odd 1003x100x96", Spec{Product: Product{Batch: 1, M: 1003, N: 100, K: 96}}},
	{"odd 1003x33x100", Spec{Product: Product{Batch: 1, M: 1003, N: 33, K: 100}}},
	{"proj NT", Spec{Product: Product{Batch: 1, M: 2048, N: 128, K: 128, TransB: true}}},
	{"up NT", Spec{Product: Product{Batch: 1, M: 2048, N: 352, K: 128, TransB: true}}},
	{"down NT", Spec{Product: Product{Batch: 1, M: 2048, N: 128, K: 352, TransB: true}}},
	{"head NT", Spec{Product: Product{Batch: 1, M: 2048, N: 256, K: 128, TransB: true}}},
	{"dx NN", Spec{Product: Product{Batch: 1, M: 2048, N: 128, K: 352}}},
	{"dx2 NN", Spec{Product: Product{Batch: 1, M: 2048, N: 352, K: 128}}},
	{"dw TN", Spec{Product: Product{Batch: 1, M: 352, N: 128, K: 2048, TransA: true}}},
	{"dw2 TN", Spec{Product: Product{Batch: 1, M: 128, N: 352, K: 2048, TransA: true}}},
	{"dw3 TN", Spec{Product: Product{Batch: 1, M: 128, N: 128, K: 2048, TransA: true}}},
	{"muon XXt", Spec{Product: Product{Batch: 16, M: 128, N: 128, K: 128, TransB: true, BatchStrideA: 16384, BatchStrideB: 16384}}},
	{"muon wide XXt", Spec{Product: Product{Batch: 12, M: 128, N: 128, K: 352, TransB: true, BatchStrideA: 45056, BatchStrideB: 45056}}},
	{"muon AX", Spec{Product: Product{Batch: 12, M: 128, N: 352, K: 128, BatchStrideA: 16384, BatchStrideB: 45056}}},
	{"generate", Spec{Product: Product{Batch: 1, M: 1, N: 352, K: 128, TransB: true}}},
}

// BenchmarkSoftware compares the variants for software adapters, except the naive one, with gonum by CPU time, which
// depends little on other work on the machine. A ratio above 1 is faster than gonum.
func BenchmarkSoftware(b *testing.B) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(b, err)
	defer dev.Close()
	for _, c := range benchSpecs {
		s, r := c.Spec, rand.New(rand.NewPCG(1, 2))
		x, y := random(r, s.M*s.K+(s.Batch-1)*s.BatchStrideA), random(r, s.N*s.K+(s.Batch-1)*s.BatchStrideB)
		operands := &bench{t: b, dev: dev, bufs: map[Operand]device.Buffer{}}
		operands.bufs[A], operands.bufs[B], operands.bufs[C] = operands.buffer("a", floatBytes(x)), operands.buffer("b", floatBytes(y)),
			operands.buffer("c", make([]byte, 4*s.Batch*s.M*s.N))
		flops := 2 * float64(s.Batch*s.M*s.N) * float64(s.K)
		for _, k := range Variants(s, on(target.DefaultLimits(), true))[1:] {
			b.Run(fmt.Sprintf("%s/%s", c.name, k.Name), func(b *testing.B) {
				operands.t, operands.bufs[Scratch] = b, operands.buffer("scratch", make([]byte, k.Scratch))
				start := cpuTime()
				l, err := dev.Load(operands.program(k, asIs, nil))
				require.NoError(b, err)
				run := func(times int) {
					for range times {
						require.NoError(b, dev.Run(l))
					}
					require.NoError(b, dev.Sync())
				}
				run(1)
				compile := cpuTime() - start
				times := int(4e8/flops) + 1
				best, gonum, wall, gonumWall := time.Hour, time.Hour, time.Hour, time.Hour
				for b.Loop() {
					cpu, at := cpuTime(), time.Now()
					run(times)
					best, wall = min(best, cpuTime()-cpu), min(wall, time.Since(at))
					cpu, at = cpuTime(), time.Now()
					for range times {
						gemm(s, x, y)
					}
					gonum, gonumWall = min(gonum, cpuTime()-cpu), min(gonumWall, time.Since(at))
				}
				b.ReportMetric(flops*float64(times)/wall.Seconds()/1e9, "GFLOP/s")
				b.ReportMetric(2*flops*float64(times)/best.Seconds()/1e9, "GFLOP/2cpu-s")
				b.ReportMetric(gonum.Seconds()/best.Seconds(), "cpu-ratio")
				b.ReportMetric(gonumWall.Seconds()/wall.Seconds(), "wall-ratio")
				b.ReportMetric(compile.Seconds()*1e3, "compile-ms")
				b.ReportMetric(k.Cost/flops*8, "cost")
				l.Release()
				operands.bufs[Scratch].Release()
			})
		}
	}
}

func gemm(s Spec, x, y []float32) {
	shape := func(x []float32, rows, cols int, trans bool) (blas32.General, blas.Transpose) {
		if trans {
			return blas32.General{Rows: cols, Cols: rows, Stride: rows, Data: x}, blas.Trans
		}
		return blas32.General{Rows: rows, Cols: cols, Stride: cols, Data: x}, blas.NoTrans
	}
	out := blas32.General{Rows: s.M, Cols: s.N, Stride: s.N, Data: make([]float32, s.M*s.N)}
	for n := range s.Batch {
		ga, ta := shape(x[n*s.BatchStrideA:], s.M, s.K, s.TransA)
		gb, tb := shape(y[n*s.BatchStrideB:], s.K, s.N, s.TransB)
		blas32.Gemm(ta, tb, 1, ga, gb, 0, out)
	}
}
