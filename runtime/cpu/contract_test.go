//go:build linux && cgo

package cpu

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/translate"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/require"
)

// opener opens a device for the suite, whose kernels are in WGSL.
func opener(threads int) contract.Open {
	return func(t *testing.T, budget int64) device.Device {
		d, err := Open(cached(t, Options{MemoryBudget: budget, Threads: threads}))
		require.NoError(t, err)
		return translate.Device{Native: d}
	}
}

func TestRefusals(t *testing.T)  { contract.Run(t, opener(2)) }
func TestExecution(t *testing.T) { contract.Execute(t, opener(3)) }
func TestTimer(t *testing.T)     { contract.Timer(t, opener(2)) }
func TestImport(t *testing.T)    { contract.Import(t, opener(2)) }
func TestShared(t *testing.T)    { contract.Shared(t, opener(2)) }
func TestLeaving(t *testing.T)   { contract.Leaving(t, opener(2)(t, 0)) }
