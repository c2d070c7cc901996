//go:build linux && cgo

package cpu_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
)

// The thousands of kernels of the suite stay in the user's cache for later runs.
func TestConformance(t *testing.T) { compute.RunWith(t, testdevice.Device(t), testdevice.Quick(t), 2) }
