//go:build unix

package transport

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkLoopback sends messages of 4 MB between two nodes of this process and prints GB/s, and the CPU seconds a GB
// of both sides together.
func BenchmarkLoopback(b *testing.B) {
	for _, class := range []Class{Hot, Bulk} {
		b.Run(class.String(), func(b *testing.B) {
			b.SetBytes(loopbackSize)
			cpu, rate := loopback(b, class, b.N)
			b.ReportMetric(cpu, "CPU-s/GB")
			b.ReportMetric(rate, "GB/s")
		})
	}
}

// Both sides together take at most four CPU seconds a GB, however busy the machine is.
func TestLoopbackTakesFewCPUSeconds(t *testing.T) {
	cpu, _ := loopback(t, Hot, 30)
	t.Logf("%.1f CPU seconds a GB", cpu)
	require.Less(t, cpu, 4.0)
}

// loopbackSize is the size of a message of loopback.
const loopbackSize = 4 << 20

// loopback sends n messages between two nodes of this process. It returns the CPU seconds a GB, and GB a second.
func loopback(b testing.TB, class Class, n int) (cpuSeconds, rate float64) {
	b.Helper()
	ca := newAuthority(b, "run")
	taken := make(chan struct{}, 1<<20)
	count := func(o *Options) { o.Receive = func(string, Message) { taken <- struct{}{} } }
	x, y := start(b, ca, "x", "127.0.0.1:0", count), start(b, ca, "y", "127.0.0.1:0", count)
	require.NoError(b, x.Connect(1, []Peer{y.peer()}))
	require.NoError(b, y.Connect(1, []Peer{x.peer()}))
	m := message(class, 0, loopbackSize)
	send := func() { require.NoError(b, y.Send("x", m)) }
	send()
	<-taken
	begin, cpu := time.Now(), cpuTime()
	const window = 8
	for i := range n {
		if i >= window {
			<-taken
		}
		send()
	}
	for range min(window, n) {
		<-taken
	}
	gb := float64(n) * loopbackSize / 1e9
	cpuSeconds, rate = (cpuTime()-cpu).Seconds()/gb, gb/time.Since(begin).Seconds()
	require.NoError(b, y.Flush(context.Background(), "x"))
	return cpuSeconds, rate
}

// cpuTime is the processor time that this process has taken.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLongLink sends messages of 4 MB over a link of 1 Gbit/s with a round trip of 100 ms, and prints the share of
// the bandwidth that is used.
func BenchmarkLongLink(b *testing.B) {
	taken := make(chan struct{}, 1<<20)
	x, y, link := couple(b, func(o *Options) {
		o.Grace, o.timing = time.Minute, timing{}
		o.Receive = func(string, Message) { taken <- struct{}{} }
	})
	link.SetLatency(50 * time.Millisecond)
	link.SetBandwidth(1e9)
	const size, window = 4 << 20, 16
	m := message(Hot, 0, size)
	require.NoError(b, y.Send("a", m))
	<-taken
	begin := time.Now()
	for i := range b.N {
		if i >= window {
			<-taken
		}
		require.NoError(b, y.Send("a", m))
	}
	for range min(window, b.N) {
		<-taken
	}
	b.ReportMetric(float64(b.N)*size*8/1e9/time.Since(begin).Seconds(), "Gbit/s")
	b.ReportMetric(float64(x.Links()[0].RoundTrip.Milliseconds()), "RTT-ms")
}
