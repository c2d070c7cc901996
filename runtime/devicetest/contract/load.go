package contract

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The bindings' own map call loses its callback to the garbage collector.
func transfersSurviveTheCollector(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 8192)
	var last device.Pending
	for i := range 200 {
		data := Pattern(4096, i)
		require.NoError(t, d.Write(b, 4096, data))
		clear(data) // Write has copied it
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
			require.Equal(t, Pattern(4096, i-1), got)
		}
		last = r
	}
}

func largeTransfers(t *testing.T, open Open) {
	d := opened(t, open, 0)
	const size = 3*MaxStaging + 12
	b := alloc(t, d, "b", size+8)
	data := Pattern(size, 5)
	require.NoError(t, d.Write(b, 8, data))
	first, err := d.Read(b, 8, size)
	require.NoError(t, err)
	require.NoError(t, d.Write(b, 8, make([]byte, size))) // comes after the read
	got, err := first.Wait()
	require.NoError(t, err)
	require.True(t, string(data) == string(got))
	require.True(t, string(make([]byte, size)) == string(Read(t, d, b, 8, size)))
	_, staging := d.Allocated()
	assert.LessOrEqual(t, staging, int64(2*MaxStaging))
	assert.Positive(t, staging)
	empty := Read(t, d, b, 0, 0)
	assert.Empty(t, empty)
	require.NoError(t, d.Write(b, 0, nil))
}

// Transfers of sizes that share no staging buffer must not starve one another.
func mixedSizes(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 4<<20)
	for i := range 300 {
		n := 4 << (i % 20)
		data := Pattern(n, i)
		require.NoError(t, d.Write(b, 0, data))
		require.Equal(t, string(data), string(Read(t, d, b, 0, int64(n))))
	}
	_, staging := d.Allocated()
	assert.LessOrEqual(t, staging, int64(2*MaxStaging))
}

// Reads and writes without Wait must not make memory grow.
func memoryDoesNotGrow(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 1<<20)
	l := Load(t, d, Increments(b, 10))
	data := Pattern(1<<20, 0)
	step := func() {
		require.NoError(t, d.Write(b, 0, data))
		require.NoError(t, d.Run(l))
		_, err := d.Read(b, 0, 1<<16)
		require.NoError(t, err)
	}
	for range 100 {
		step()
	}
	require.NoError(t, d.Sync())
	before := resident(t)
	for range 1200 { // reads that stay take 75 MB
		step()
	}
	require.NoError(t, d.Sync())
	assert.Less(t, resident(t)-before, int64(64<<20))
}

// resident returns the process's memory in bytes, or 0 if the system does not report it.
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

func openAndCloseOften(t *testing.T, open Open) {
	before := runtime.NumGoroutine()
	for range 8 {
		d := open(t, 0)
		b := alloc(t, d, "b", 256)
		require.NoError(t, d.Run(Load(t, d, Increments(b, 1))))
		require.NoError(t, d.Close())
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before+1)
}

func concurrentUse(t *testing.T, open Open) {
	d := opened(t, open, 0)
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			b, err := d.Alloc("b", 1024)
			assert.NoError(t, err)
			defer b.Release()
			l, err := d.Load(Increments(b, 3))
			assert.NoError(t, err)
			defer l.Release()
			for i := range 30 {
				assert.NoError(t, d.Write(b, 0, Pattern(1024, g+i)))
				assert.NoError(t, d.Run(l))
				r, err := d.Read(b, 0, 1024)
				assert.NoError(t, err)
				if i%3 == 0 {
					assert.NoError(t, d.Sync())
				}
				got, err := r.Wait()
				assert.NoError(t, err)
				want := Words(Pattern(1024, g+i))
				for k := range 64 {
					want[k] += 3
				}
				assert.Equal(t, want, Words(got))
			}
		})
	}
	wait.Wait()
	used, _ := d.Allocated()
	assert.Zero(t, used)
}

func closeWhileInUse(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 1024)
	l := Load(t, d, Increments(b, 1))
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for {
				err := d.Run(l)
				if err == nil {
					_, err = d.Read(b, 0, 4)
				}
				if err == nil {
					err = d.Sync()
				}
				if err != nil {
					assert.ErrorIs(t, err, device.ErrClosed)
					return
				}
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	for range 2 {
		wait.Go(func() { assert.NoError(t, d.Close()) })
	}
	wait.Wait()
}

// Leaving checks that Close ends a Load of many kernels before its next kernel.
func Leaving(t *testing.T, d device.Device) {
	b := alloc(t, d, "b", 1024)
	p := &device.Program{Label: "many"}
	for i := range 3000 {
		s := Increment(1)
		s.Source = strings.Replace(s.Source, "+= 1u", fmt.Sprintf("+= %du", uint32(time.Now().UnixNano())+uint32(i)), 1) // not in any cache
		p.Shaders = append(p.Shaders, s)
		p.Commands = append(p.Commands, device.Command{Shader: i, Args: []device.Range{{Buffer: b, Size: 1024}}, Groups: [3]int{4, 1, 1}})
	}
	loaded := make(chan error, 1)
	go func() {
		_, err := d.Load(p)
		loaded <- err
	}()
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, d.Close())
	require.ErrorIs(t, <-loaded, device.ErrClosed)
}

func twoDevices(t *testing.T, open Open) {
	var wait sync.WaitGroup
	for g := range 2 {
		d := opened(t, open, 0)
		wait.Go(func() {
			b := alloc(t, d, "b", 1024)
			l := Load(t, d, Increments(b, 10))
			for range 50 {
				assert.NoError(t, d.Run(l))
			}
			assert.Equal(t, uint32(500), Words(Read(t, d, b, 0, 256))[g])
		})
	}
	wait.Wait()
}
