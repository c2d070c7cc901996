//go:build linux && cgo

package cpu_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/stretchr/testify/require"
)

func TestConformance(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	devicetest.Run(t, dev)
}
