//go:build unix

package sidecar

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/require"
)

func opens(name string) contract.Open {
	return func(t *testing.T, budget int64) device.Device {
		d, err := Open(options(fmt.Sprint(name, " ", budget)))
		require.NoError(t, err)
		return d
	}
}

func TestRefusalsOfAWorker(t *testing.T) {
	for _, name := range tier.Divide(t, append([]string{"null"}, backends()...), tier.First[string](2)) {
		t.Run(name, func(t *testing.T) { contract.Run(t, opens(name)) })
	}
}

// A worker executes what its device does. Devices themselves have this test, too.
func TestExecutionInAWorker(t *testing.T) {
	for _, name := range tier.Divide(t, backends(), tier.First[string](1)) {
		t.Run(name, func(t *testing.T) { contract.Execute(t, opens(name)) })
	}
}

// Both rings are filled many times, with ranges of all sizes.
func TestRingsGoRound(t *testing.T) {
	d := opened(t, options("null"))
	b, err := d.Alloc("b", 4<<20)
	require.NoError(t, err)
	for n := int64(4); n <= 4<<20; n *= 64 {
		data := make([]byte, n)
		var last device.Pending
		for range min(ringBytes/n*3/2, ringBytes/alignment*3/2) {
			require.NoError(t, d.Write(b, 0, data))
			last, err = d.Read(b, 0, n)
			require.NoError(t, err)
		}
		got, err := last.Wait()
		require.NoError(t, err)
		require.Len(t, got, int(n))
	}
	require.NoError(t, d.Sync())
	require.NoError(t, d.Close())
}

// A worker measures if its device can, and otherwise returns ErrNoTimestamps.
func TestTimerOfAWorker(t *testing.T) {
	for _, name := range tier.Divide(t, backends(), tier.First[string](1)) {
		contract.Timer(t, opens(name))
	}
	d := opens("untimed")(t, 0)
	defer d.Close()
	b, err := d.Alloc("b", 256)
	require.NoError(t, err)
	_, err = d.(device.Timer).RunTimed(contract.Load(t, d, contract.Increments(b, 1)))
	require.ErrorIs(t, err, device.ErrNoTimestamps)
}
