//go:build linux && cgo

package cpu_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
	"github.com/stretchr/testify/require"
)

func TestConformance(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{CacheDir: kept(t)})
	require.NoError(t, err)
	defer dev.Close()
	devicetest.Run(t, dev)
}

// kept is a folder in which the thousands of kernels of the suite stay for later runs.
func kept(t *testing.T) string {
	dir, err := os.UserCacheDir()
	require.NoError(t, err)
	dir = filepath.Join(dir, "gpupipe", "cpu-conformance")
	require.NoError(t, cpu.MakeCache(dir))
	return dir
}
