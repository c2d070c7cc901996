//go:build linux

package vulkan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
)

func TestConformance(t *testing.T) {
	dev, err := vulkan.Open(0, vulkan.Options{CacheDir: t.TempDir()})
	require.NoError(t, err)
	defer dev.Close()
	compute.Run(t, dev, 1)
}
