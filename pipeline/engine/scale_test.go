package engine

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
)

// A loss scale is exact: it changes no bit of what is learned in f32, wherever the model is cut, and each batch has the
// one that the norms of the batches before it decide.
func TestLossScaleChangesNoBit(t *testing.T) {
	l := newLender(t)
	for _, s := range layouts() {
		for _, layout := range tier.Divide(t, []Layout{{Stages: 2, Replicas: 2, Cut: []int{3}}, {Stages: 1, Replicas: 1},
			{Stages: 2, Replicas: 1, Cut: []int{3}}}, tier.First[Layout](1)) {
			s.Stages, s.Replicas, s.Cut = layout.Stages, layout.Replicas, layout.Cut
			s.scale = nil
			want := l.train(t, s, nil)
			s.scale = &optim.LossScale{Initial: 1 << 10, GrowthEvery: 2}
			got := l.train(t, s, nil)
			scale := float32(1 << 10)
			for batch := range batches {
				name := fmt.Sprint("scale ", batch)
				if batch > s.Delay && (batch-s.Delay)%2 == 0 {
					scale *= 2
				}
				assert.Equal(t, exec.F32Bytes([]float32{scale}), got[name], "%s: %v", name, s)
				delete(got, name)
			}
			delete(got, optim.ScaleVariable)
			delete(got, optim.NextScaleVariable)
			equal(t, want, got, s)
		}
	}
}
