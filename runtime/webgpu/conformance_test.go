package webgpu_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/require"
)

func TestConformance(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	compute.Run(t, dev, 0)
}
