//go:build linux && cgo

package cpu

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/checktest"
	"github.com/stretchr/testify/require"
)

func opener(threads int) checktest.Open {
	return func(t *testing.T, budget int64) device.Device {
		d, err := Open(Options{MemoryBudget: budget, Threads: threads})
		require.NoError(t, err)
		return d
	}
}

func TestRefusals(t *testing.T)  { checktest.Run(t, opener(2)) }
func TestExecution(t *testing.T) { checktest.Execute(t, opener(3)) }
func TestTimer(t *testing.T)     { checktest.Timer(t, opener(2)) }
func TestImport(t *testing.T)    { checktest.Import(t, opener(2)) }
func TestShared(t *testing.T)    { checktest.Shared(t, opener(2)) }
func TestLeaving(t *testing.T)   { checktest.Leaving(t, opener(2)(t, 0)) }
