package contract

import (
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Timer checks the measurements of a device with timestamps.
func Timer(t *testing.T, open Open) {
	t.Run("same results", func(t *testing.T) { timedLikeRun(t, open) })
	t.Run("the time is right", func(t *testing.T) { timeIsRight(t, open) })
	t.Run("without Wait", func(t *testing.T) { withoutWait(t, open) })
	t.Run("refusals", func(t *testing.T) { timerRefuses(t, open) })
}

// RunTimed measures a program, and returns its commands' times and the duration by the host's clock.
func RunTimed(t testing.TB, d device.Device, l device.Loaded) (times []time.Duration, wall time.Duration) {
	t.Helper()
	timer, ok := d.(device.Timer)
	require.True(t, ok, "%T is no device.Timer", d)
	began := time.Now()
	m, err := timer.RunTimed(l)
	require.NoError(t, err)
	times, err = m.Wait()
	require.NoError(t, err)
	return times, time.Since(began)
}

func sum(times []time.Duration) (total time.Duration) {
	for _, t := range times {
		total += t
	}
	return total
}

// mixed returns a program of n commands on b: mostly increments of its first words, and some copies of them within b or
// to other.
func mixed(b, other device.Buffer, n int) *device.Program {
	p := Increments(b, n)
	first := device.Range{Buffer: b, Size: 256}
	for i := range p.Commands {
		switch i % 7 {
		case 3:
			p.Commands[i] = device.Command{Shader: device.Copy, Args: []device.Range{first, {Buffer: b, Offset: 1024, Size: 256}}}
		case 5:
			p.Commands[i] = device.Command{Shader: device.Copy, Args: []device.Range{{Buffer: b, Offset: 1024, Size: 256},
				{Buffer: other, Size: 256}}}
		}
	}
	return p
}

func timedLikeRun(t *testing.T, open Open) {
	d := opened(t, open, 0)
	for _, n := range []int{1, 3, 5000} {
		var got [2][]byte
		for i := range got {
			b, other := alloc(t, d, "b", 2048), alloc(t, d, "other", 256)
			require.NoError(t, d.Write(b, 0, Pattern(2048, n)))
			l := Load(t, d, mixed(b, other, n))
			if i == 0 {
				require.NoError(t, d.Run(l))
			} else {
				RunTimed(t, d, l) // may calibrate its clock first
				require.NoError(t, d.Write(b, 0, Pattern(2048, n)))
				times, wall := RunTimed(t, d, l)
				assert.Len(t, times, n)
				for k, x := range times {
					assert.GreaterOrEqual(t, x, time.Duration(0), "command %d of %d", k, n)
				}
				assert.Positive(t, sum(times), "%d commands", n)
				assert.LessOrEqual(t, sum(times), wall, "%d commands", n)
			}
			got[i] = append(Read(t, d, b, 0, 2048), Read(t, d, other, 0, 256)...)
			l.Release()
		}
		assert.Equal(t, got[0], got[1], "%d commands", n)
	}
	l := Load(t, d, &device.Program{Label: "empty"})
	times, _ := RunTimed(t, d, l)
	assert.Empty(t, times)
}

// A long command takes nearly all the time that the host waits for it. A clock in another unit than it reports would
// not show that. Other work on the machine may add time, but not in every attempt.
func timeIsRight(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 256)
	short, long := spin(b, 1000), spin(b, 20_000_000)
	p := &device.Program{Label: "spins", Shaders: append(short.Shaders, long.Shaders...),
		Commands: append(short.Commands, long.Commands...)}
	p.Commands[1].Shader = 1
	l := Load(t, d, p)
	RunTimed(t, d, l)
	var share float64
	for i := 0; i < 2 || i < 5 && share <= 0.5; i++ { // again while other work disturbs the clock
		times, wall := RunTimed(t, d, l)
		assert.Positive(t, times[0])
		assert.Greater(t, times[1], times[0])
		assert.LessOrEqual(t, sum(times), wall)
		share = max(share, times[1].Seconds()/wall.Seconds())
	}
	assert.Greater(t, share, 0.5)
}

// Measurements without Wait cost no memory. Measurements of a released program still complete.
func withoutWait(t *testing.T, open Open) {
	d := opened(t, open, 0)
	b := alloc(t, d, "b", 2048)
	other := alloc(t, d, "other", 256)
	l := Load(t, d, mixed(b, other, 150))
	var last device.Timings
	for i := range 40 {
		var err error
		last, err = d.(device.Timer).RunTimed(l)
		require.NoError(t, err)
		if i%3 == 0 {
			require.NoError(t, d.Run(l))
		}
	}
	l.Release()
	times, err := last.Wait()
	require.NoError(t, err)
	assert.Positive(t, sum(times))
	again, err := last.Wait()
	require.NoError(t, err)
	assert.Equal(t, times, again)
	_, staging := d.Allocated()
	assert.LessOrEqual(t, staging, int64(2*MaxStaging))
	l = Load(t, d, Increments(b, 100))
	pending, err := d.(device.Timer).RunTimed(l)
	require.NoError(t, err)
	require.NoError(t, d.Sync())
	times, err = pending.Wait()
	require.NoError(t, err)
	assert.Len(t, times, 100)
}

func timerRefuses(t *testing.T, open Open) {
	d, stranger := open(t, 0), opened(t, open, 0)
	b := alloc(t, d, "b", 256)
	first, second := Load(t, d, Increments(b, 1)), Load(t, d, Increments(b, 1))
	timer := d.(device.Timer)
	_, err := stranger.(device.Timer).RunTimed(first)
	require.ErrorIs(t, err, device.ErrValidation)
	_, err = timer.RunTimed(nil)
	require.ErrorIs(t, err, device.ErrValidation)
	first.Release()
	_, err = timer.RunTimed(first)
	refused(t, err, d, "increments", "released")
	m, err := timer.RunTimed(second)
	require.NoError(t, err)
	b.Release()
	_, err = timer.RunTimed(second)
	refused(t, err, d, "increments", `buffer "b" is released`)
	require.NoError(t, d.Close())
	times, err := m.Wait() // enqueued before Close, so it completes
	require.NoError(t, err)
	assert.Len(t, times, 1)
	_, err = timer.RunTimed(second)
	assert.ErrorIs(t, err, device.ErrClosed)
}
