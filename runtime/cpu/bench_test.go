//go:build linux && cgo

package cpu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/require"
)

// BenchmarkRun measures a dispatch in a long program, short and long, and a run and its Sync.
func BenchmarkRun(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, groups := range []int{1, 64, 20000} {
			b.Run(fmt.Sprintf("threads=%d/groups=%d", threads, groups), func(b *testing.B) {
				const n = 1000
				d := open(b, Options{Threads: threads})
				buf := alloc(b, d, 1<<20)
				l := contract.Load(b, d, counting(buf, slices.Repeat([]int{groups}, n)...))
				require.NoError(b, d.Run(l))
				require.NoError(b, d.Sync())
				b.ResetTimer()
				for range b.N {
					require.NoError(b, d.Run(l))
				}
				require.NoError(b, d.Sync())
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/dispatch")
			})
		}
	}
	b.Run("roundtrip", func(b *testing.B) {
		d := open(b, Options{})
		l := contract.Load(b, d, counting(alloc(b, d, 4096), 1))
		for range b.N {
			require.NoError(b, d.Run(l))
			require.NoError(b, d.Sync())
		}
	})
}

// BenchmarkTransfer measures large writes and reads.
func BenchmarkTransfer(b *testing.B) {
	const n = 64 << 20
	d := open(b, Options{})
	buf, data := alloc(b, d, n), make([]byte, n)
	for name, f := range map[string]func(){
		"write": func() { require.NoError(b, d.Write(buf, 0, data)) },
		"read":  func() { contract.Read(b, d, buf, 0, n) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(n)
			for range b.N {
				f()
			}
			require.NoError(b, d.Sync())
		})
	}
}
