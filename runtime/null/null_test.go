package null

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRefusals(t *testing.T) {
	limits := target.DefaultLimits()
	limits.MaxBindings, limits.OffsetAlignment, limits.MaxBindingSize = 4, 32, 1<<20
	for name, o := range map[string]Options{"default": {}, "given": {Limits: &limits}} {
		t.Run(name, func(t *testing.T) {
			contract.Run(t, func(t *testing.T, budget int64) device.Device {
				o.MemoryBudget = budget
				return New(o)
			})
		})
	}
}

func TestCounts(t *testing.T) {
	d := New(Options{Name: "null:7"})
	assert.Equal(t, device.Info{Name: "null:7", Adapter: "none", Kind: device.Null}, d.Info())
	assert.Equal(t, target.DefaultLimits(), d.Limits())
	b, err := d.Alloc("b", 1024)
	require.NoError(t, err)
	l, err := d.Load(&device.Program{Shaders: []device.Shader{contract.Increment(1)}, Commands: []device.Command{
		{Args: []device.Range{{Buffer: b, Size: 256}}, Groups: [3]int{1, 1, 1}},
		{Args: []device.Range{{Buffer: b, Offset: 256, Size: 256}}, Groups: [3]int{1, 1, 1}},
		{Shader: device.Copy, Args: []device.Range{{Buffer: b, Size: 512}, {Buffer: b, Offset: 512, Size: 512}}},
	}})
	require.NoError(t, err)
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			assert.NoError(t, d.Run(l))
			assert.NoError(t, d.Write(b, 4, []byte{1, 2, 3, 4}))
			r, err := d.Read(b, 0, 8)
			assert.NoError(t, err)
			data, err := r.Wait()
			assert.NoError(t, err)
			assert.Equal(t, make([]byte, 8), data)
			assert.NoError(t, d.Sync())
		})
	}
	wait.Wait()
	assert.Equal(t, Counts{Programs: 10, Dispatches: 20, Copies: 10, Reads: 10, Writes: 10,
		BytesCopied: 5120, BytesRead: 80, BytesWritten: 40}, d.Counts())
}

// Latencies add up, and a wait lasts until everything enqueued before it is done.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := map[string]time.Duration{"F": 10 * time.Millisecond, "B": 20 * time.Millisecond}
		d := New(Options{Latency: func(program string) time.Duration { return took[program] }})
		b, err := d.Alloc("b", 8)
		require.NoError(t, err)
		load := func(label string) device.Loaded {
			l, err := d.Load(&device.Program{Label: label, Shaders: []device.Shader{contract.Increment(1)},
				Commands: []device.Command{{Args: []device.Range{{Buffer: b, Size: 8}}, Groups: [3]int{1, 1, 1}}}})
			require.NoError(t, err)
			return l
		}
		forward, backward, free := load("F"), load("B"), load("other")
		began := time.Now()
		after := func(want time.Duration) {
			t.Helper()
			require.Equal(t, want, time.Since(began))
		}
		read := func() device.Pending {
			p, err := d.Read(b, 0, 8)
			require.NoError(t, err)
			return p
		}
		wait := func(p device.Pending) {
			data, err := p.Wait()
			require.NoError(t, err)
			require.Equal(t, make([]byte, 8), data)
		}
		wait(read())
		require.NoError(t, d.Sync())
		after(0)
		require.NoError(t, d.Run(forward))
		first := read()
		require.NoError(t, d.Run(backward))
		require.NoError(t, d.Run(free))
		second := read()
		after(0)
		wait(first)
		after(10 * time.Millisecond)
		wait(second)
		after(30 * time.Millisecond)
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, d.Run(forward))
		require.NoError(t, d.Sync())
		after(45 * time.Millisecond)

		require.NoError(t, d.Run(backward))
		last := read()
		time.AfterFunc(time.Millisecond, func() { d.Close() })
		_, err = last.Wait()
		require.ErrorIs(t, err, device.ErrClosed)
		after(46 * time.Millisecond)
	})
}

// A lost device fails every call and reads in progress with the loss. A closed device is closed.
func TestLoss(t *testing.T) {
	d := New(Options{LoseAfter: 3})
	b, err := d.Alloc("b", 8)
	require.NoError(t, err)
	require.NoError(t, d.Write(b, 0, make([]byte, 8)))
	p, err := d.Read(b, 0, 8)
	require.NoError(t, err)
	_, err = p.Wait()
	require.ErrorIs(t, err, device.ErrLost)
	require.ErrorIs(t, d.Write(b, 0, make([]byte, 8)), device.ErrLost)
	require.ErrorIs(t, d.Sync(), device.ErrLost)
	b.Release()
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Sync(), device.ErrClosed)
}
