package devicetest

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Run checks every case of every op on a device.
func Run(t *testing.T, dev device.Device) {
	for _, o := range graph.Catalogue() {
		t.Run(o.Name(), func(t *testing.T) {
			for _, c := range o.Cases() {
				for _, r := range Check(dev, c) {
					if !r.OK() {
						t.Errorf("%s %s (%s): %s", r.Op, r.Case, r.Candidate, r.Failure)
					}
				}
			}
		})
	}
}
