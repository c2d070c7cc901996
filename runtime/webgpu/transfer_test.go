package webgpu

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// The bindings' own map call loses its callback to the garbage collector.
func TestTransfersSurviveTheCollector(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 8192)
	var last device.Pending
	for i := range 1000 {
		data := pattern(4096, i)
		require.NoError(t, d.Write(b, 4096, data))
		clear(data) // it was copied
		r, err := d.Read(b, 4096, 4096)
		require.NoError(t, err)
		junk := make([]*int, 500)
		for k := range junk {
			junk[k] = new(int)
		}
		runtime.GC()
		if last != nil {
			got, err := last.Wait()
			require.NoError(t, err)
			require.Equal(t, pattern(4096, i-1), got)
		}
		last = r
	}
}

func TestLargeTransfers(t *testing.T) {
	d := open(t, 0)
	const size = 3*mostStaging + 12
	b := alloc(t, d, size+8)
	data := pattern(size, 5)
	require.NoError(t, d.Write(b, 8, data))
	first, err := d.Read(b, 8, size)
	require.NoError(t, err)
	require.NoError(t, d.Write(b, 8, make([]byte, size))) // comes after the read
	got, err := first.Wait()
	require.NoError(t, err)
	require.True(t, string(data) == string(got))
	require.True(t, string(make([]byte, size)) == string(read(t, d, b, 8, size)))
	_, staging := d.Allocated()
	assert.LessOrEqual(t, staging, int64(2*mostStaging))
	assert.Positive(t, staging)
	empty := read(t, d, b, 0, 0)
	assert.Empty(t, empty)
	require.NoError(t, d.Write(b, 0, nil))
}

// Sizes that share no staging buffer must not crowd one another out.
func TestMixedSizes(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 4<<20)
	for i := range 300 {
		n := 4 << (i % 20)
		data := pattern(n, i)
		require.NoError(t, d.Write(b, 0, data))
		require.Equal(t, string(data), string(read(t, d, b, 0, int64(n))))
	}
	_, staging := d.Allocated()
	assert.LessOrEqual(t, staging, int64(2*mostStaging))
}

// Nobody waits for these reads and writes; memory must not grow with them.
func TestMemoryDoesNotGrow(t *testing.T) {
	d := open(t, 0)
	b := alloc(t, d, 1<<20)
	l := load(t, d, increments(b, 10))
	data := pattern(1<<20, 0)
	step := func() {
		require.NoError(t, d.Write(b, 0, data))
		require.NoError(t, d.Run(l))
		_, err := d.Read(b, 0, 1<<16)
		require.NoError(t, err)
	}
	for range 200 {
		step()
	}
	require.NoError(t, d.Sync())
	before := resident(t)
	for range 2000 {
		step()
	}
	require.NoError(t, d.Sync())
	assert.Less(t, resident(t)-before, int64(64<<20))
}

// resident is the process's memory in bytes, or 0 where the system does not say.
func resident(t *testing.T) int64 {
	runtime.GC()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}

func benchTransfer(b *testing.B, n int, f func(d *Device, buf device.Buffer, data []byte)) {
	d := open(b, 0)
	buf := alloc(b, d, int64(n))
	data := pattern(n, 0)
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
			benchTransfer(b, n, func(d *Device, buf device.Buffer, data []byte) { read(b, d, buf, 0, int64(n)) })
		})
	}
}

// BenchmarkRun gives the host's cost of a dispatch in a long program (encode), and the whole cost of it (run).
func BenchmarkRun(b *testing.B) {
	const n = 1000
	d := open(b, 0)
	l := load(b, d, increments(alloc(b, d, 256), n))
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
	empty := load(b, d, increments(alloc(b, d, 256), 1))
	b.Run("roundtrip", func(b *testing.B) {
		for range b.N {
			require.NoError(b, d.Run(empty))
			require.NoError(b, d.Sync())
		}
	})
}
