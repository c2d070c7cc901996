package sidecar

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/checktest"
)

func opens(name string) checktest.Open {
	return func(t *testing.T, budget int64) device.Device {
		d, err := Open(options(fmt.Sprint(name, " ", budget)))
		require.NoError(t, err)
		return d
	}
}

func TestRefusals(t *testing.T) {
	t.Run("null", func(t *testing.T) { checktest.Run(t, opens("null")) })
	t.Run("webgpu", func(t *testing.T) { checktest.Run(t, opens("webgpu")) })
}

func TestExecution(t *testing.T) { checktest.Execute(t, opens("webgpu")) }
