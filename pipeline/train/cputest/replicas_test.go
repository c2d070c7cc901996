//go:build linux && cgo

package cputest

import (
	"testing"
)

// Replicas that train on their own have the same bits on one device and on several, on one stage and on two.
func TestReplicasEqualOneDevice(t *testing.T) {
	common := []string{"train={steps: 7, batch_size: 12, microbatches: 6, eval_every: 3, save_every: 0, grad_clip: 0.5}",
		"pipeline.replicas=2", "pipeline.local_steps=3", "pipeline.outer={wire: int4, late: 2}", "pipeline.delay=1",
		"pipeline.stale_microbatches=1"}
	one := filesOf(t, append(common, "pipeline.devices=[cpu:0/1]")...)
	for _, more := range [][]string{{"pipeline.devices=[cpu:0/1, cpu:0/2]"}, {"pipeline.stages=2", "pipeline.devices=[cpu:0/1]"},
		{"pipeline.isolate=process", "pipeline.devices=[cpu:0/1]"}} {
		requireEqual(t, one, filesOf(t, append(common, more...)...), more[0])
	}
}
