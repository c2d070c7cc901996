package webgpu

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/require"
)

func benchTransfer(b *testing.B, n int, f func(d *Device, buf device.Buffer, data []byte)) {
	d := open(b, 0)
	buf := alloc(b, d, int64(n))
	data := contract.Pattern(n, 0)
	f(d, buf, data)
	b.SetBytes(int64(n))
	b.ResetTimer()
	for range b.N {
		f(d, buf, data)
	}
	require.NoError(b, d.Sync())
}

func BenchmarkTransfer(b *testing.B) {
	for name, n := range map[string]int{"4KiB": 4 << 10, "64MiB": 64 << 20} {
		b.Run("write/"+name, func(b *testing.B) {
			benchTransfer(b, n, func(d *Device, buf device.Buffer, data []byte) { require.NoError(b, d.Write(buf, 0, data)) })
		})
		b.Run("read/"+name, func(b *testing.B) {
			benchTransfer(b, n, func(d *Device, buf device.Buffer, data []byte) { contract.Read(b, d, buf, 0, int64(n)) })
		})
	}
}

// BenchmarkRun measures a dispatch in a long program: the host's cost (encode) and the whole cost (run).
func BenchmarkRun(b *testing.B) {
	const n = 1000
	d := open(b, 0)
	l := contract.Load(b, d, contract.Increments(alloc(b, d, 256), n))
	b.Run("host", func(b *testing.B) {
		for range b.N {
			require.NoError(b, d.Run(l))
			b.StopTimer()
			require.NoError(b, d.Sync())
			b.StartTimer()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/dispatch")
	})
	b.Run("device", func(b *testing.B) {
		for range b.N {
			require.NoError(b, d.Run(l))
		}
		require.NoError(b, d.Sync())
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/dispatch")
	})
	empty := contract.Load(b, d, contract.Increments(alloc(b, d, 256), 1))
	b.Run("roundtrip", func(b *testing.B) {
		for range b.N {
			require.NoError(b, d.Run(empty))
			require.NoError(b, d.Sync())
		}
	})
}
