package layout

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/stretchr/testify/assert"
)

func TestNames(t *testing.T) {
	share := func(name string, n int) string {
		return fmt.Sprintf("%s/%d", name, max(1, host.ThisProcess().Cores()/n))
	}
	for _, c := range []struct {
		stages, replicas, runs int
		devices, want          []string
	}{
		{1, 1, 0, nil, []string{""}},
		{1, 1, 1, []string{"cpu:0"}, []string{"cpu:0"}},
		{2, 1, 1, nil, []string{share("", 2), share("", 2)}},
		{2, 1, 0, []string{"cpu:0"}, []string{share("cpu:0", 2), share("cpu:0", 2)}},
		{2, 1, 3, []string{"cpu:0"}, []string{share("cpu:0", 6), share("cpu:0", 6)}},
		{1, 1, 2, []string{"cpu"}, []string{share("cpu", 2)}},
		{2, 2, 1, []string{"cpu:0", "webgpu:0"}, []string{share("cpu:0", 2), "webgpu:0", share("cpu:0", 2), "webgpu:0"}},
		{2, 1, 1, []string{"cpu:0", "webgpu:0"}, []string{"cpu:0", "webgpu:0"}},
		{3, 1, 1, []string{"cpu:0/7", "cpu:0", "cpu:0"}, []string{"cpu:0/7", share("cpu:0", 2), share("cpu:0", 2)}},
		{2, 1, 1, []string{"vulkan:0"}, []string{"vulkan:0", "vulkan:0"}},
		{2, 1, 1, []string{"cpu:x"}, []string{"cpu:x", "cpu:x"}}, // opening it is the error
	} {
		p := config.Pipeline{Stages: c.stages, Replicas: c.replicas, Devices: c.devices}
		assert.Equal(t, c.want, Names(p, c.runs), "%+v", c)
	}
}
