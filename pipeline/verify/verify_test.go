package verify_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/verify"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAll(t *testing.T) {
	began := time.Now()
	r, err := verify.Run(context.Background(), verify.Options{OpenDevice: func(string) (device.Device, error) { return webgpu.Open(0, webgpu.Options{}) },
		Progress: func(i, n int, name string) { fmt.Println(time.Since(began), i, n, name) }})
	require.NoError(t, err)
	for _, c := range r.Cases {
		assert.True(t, c.OK(), "%s: %v", c.Name, c.Difference)
		fmt.Println(c.Claim, "|", c.Name, "|", c.Against, "|", c.Verdict, c.Detail, c.Difference)
	}
}
