//go:build unix

package measure

import (
	"context"
	"errors"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// connected is hardware that may import memory of the host, and counts what passes.
func connected(driver string, alignment int64) *hardware {
	h := pretend("gpu:"+driver, driver)
	h.Device = null.New(null.Options{ImportAlignment: alignment})
	return h
}

// What is timed is the way that the engine will take: memory that both devices import, or else the staging of each.
func TestTransfersAreThoseOfTraining(t *testing.T) {
	for name, c := range map[string]struct {
		alignments []int64
		staged     bool
		shared     bool
	}{
		"both import":                    {[]int64{4096, 65536}, false, true},
		"both import, in processes":      {[]int64{4096, 4096}, true, false},
		"neither imports":                {[]int64{0, 0}, false, false},
		"one imports":                    {[]int64{4096, 0}, false, false},
		"one of three imports not":       {[]int64{4096, 4096, 0}, false, false},
		"three, of different alignments": {[]int64{4096, 8192, 16384}, false, true},
	} {
		var devices []device.Device
		for i, a := range c.alignments {
			devices = append(devices, connected(string(rune('a'+i)), a))
		}
		o := Options{Cache: NewCache(), Staged: c.staged}
		_, _, err := newTarget(t, small(false), "sgd").Problem(context.Background(), devices, o)
		require.NoError(t, err)
		for _, d := range devices {
			counts := d.(*hardware).Counts()
			assert.Equal(t, c.shared, counts.Transfers > 0, name)
			assert.Equal(t, c.shared, counts.Reads == 0, name)
			left, _ := d.Allocated()
			assert.Zero(t, left)
		}
		if c.staged {
			continue
		}
		_, _, err = newTarget(t, small(false), "sgd").Problem(context.Background(), devices[:1], o)
		require.NoError(t, err)
		assert.Equal(t, c.alignments[0] > 0, devices[0].(*hardware).Counts().Transfers > 0, "%s: one way is not remembered for another",
			name)
	}
}

// A driver that takes no memory has its staging timed; a device that is lost is an error.
func TestRefusedSharing(t *testing.T) {
	for _, refusal := range []error{errors.New("too much"), device.ErrOutOfMemory, device.ErrLost, device.ErrClosed} {
		h := connected("a", 4096)
		dev := &faulty.Device{Device: h, Before: func(op faulty.Op, _ string) error {
			if op == faulty.Import {
				return refusal
			}
			return nil
		}}
		l, cached, err := Options{Cache: NewCache()}.transfers(context.Background(), dev, 1<<16, []device.Device{dev})
		assert.False(t, cached)
		if errors.Is(refusal, device.ErrLost) || errors.Is(refusal, device.ErrClosed) {
			require.ErrorIs(t, err, refusal)
			assert.ErrorContains(t, err, "a shared transfer of 65536 bytes: ")
			continue
		}
		require.NoError(t, err)
		assert.Positive(t, l.Latency)
		assert.Positive(t, h.Counts().Reads)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dev := connected("a", 4096)
	_, _, err := Options{Cache: NewCache()}.transfers(ctx, dev, 1<<16, []device.Device{dev})
	assert.ErrorIs(t, err, context.Canceled)
}
