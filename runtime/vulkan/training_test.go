//go:build linux

package vulkan_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
)

// A pipeline over two devices trains: what TestValidation watches. The kernels are those of the golden runs, so that the driver's cache has
// them, whichever is first.
func TestTraining(t *testing.T) {
	const golden = "../../pipeline/train/testdata/golden/"
	dir := t.TempDir()
	c, err := train.LoadConfig(golden+"tied/muon.yaml", []string{"init.from=" + golden + "tied", "data.train=[" + golden + "text.txt]",
		"train={steps: 2, microbatches: 4}", "pipeline={schedule: 1f1b, stages: 2, devices: [vulkan:0, vulkan:0]}", "run.dir=" + dir})
	require.NoError(t, err)
	_, err = train.Run(context.Background(), c, train.Options{OpenDevice: func(string) (device.Device, error) {
		return vulkan.Open(0, vulkan.Options{CacheDir: filepath.Join(dir, "cache")})
	}})
	require.NoError(t, err)
}
