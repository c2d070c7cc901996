//go:build unix

package null

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func importing(_ *testing.T, budget int64) device.Device {
	return New(Options{ImportAlignment: 8192, MemoryBudget: budget})
}

func TestImport(t *testing.T) {
	contract.Import(t, importing)
	contract.ImportUnsupported(t, New(Options{}))
}

// A device that is wrapped imports as it would by itself.
func TestFaultyImport(t *testing.T) {
	never := func(faulty.Op, string) error { return nil }
	contract.Import(t, func(t *testing.T, budget int64) device.Device {
		return &faulty.Device{Device: importing(t, budget), Before: never}
	})
	contract.ImportUnsupported(t, &faulty.Device{Device: New(Options{}), Before: never})
}

func TestTransfersCount(t *testing.T) {
	d := New(Options{ImportAlignment: 4096})
	m, err := host.Map(4096, 4096)
	require.NoError(t, err)
	b, err := d.Import("block", m.Bytes, m.Unmap)
	require.NoError(t, err)
	contract.Transfer(t, d, device.Range{Buffer: b, Size: 64}, device.Range{Buffer: b, Offset: 64, Size: 64})
	assert.Equal(t, Counts{Transfers: 1, BytesTransferred: 64}, d.Counts())
	require.NoError(t, d.Close())
}

// Memory of a device that is lost stays as it is.
func TestLostMemoryIsKept(t *testing.T) {
	d := New(Options{ImportAlignment: 4096, LoseAfter: 2})
	m, err := host.Map(4096, 4096)
	require.NoError(t, err)
	b, err := d.Import("block", m.Bytes, func() { t.Error("it is given back") })
	require.NoError(t, err)
	p, err := d.Transfer(device.Range{Buffer: b, Size: 64}, device.Range{Buffer: b, Offset: 64, Size: 64})
	require.NoError(t, err)
	_, err = p.Wait()
	require.ErrorIs(t, err, device.ErrLost)
	b.Release()
	require.NoError(t, d.Close())
}
