//go:build linux && cgo

package cpu_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/testdevice"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
)

// The thousands of kernels of the suite stay in the user's cache for later runs.
func TestConformance(t *testing.T) { devicetest.Run(t, testdevice.Device(t), 2) }
