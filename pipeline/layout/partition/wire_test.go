package partition

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What stages send has the size of its format: activations forward, gradients back, and the exchange of a tied
// embedding. The time on a device's link is that of f32.
func TestBytesOnTheWire(t *testing.T) {
	us := model(2)
	for i := range us[:3] {
		us[i].Out = 4 * 100
	}
	us[3].Shared, us[3].Parameters = 4*256, 4
	problem := Problem{Units: us, Devices: devices(us, 1, 1, 1), Schedule: generate(t, "2bw", 3, 1, 4), Tokens: 1, Cut: []int{1, 2}}
	for i := range problem.Devices {
		problem.Devices[i].Link = Link{Bandwidth: 1000}
	}
	exact, err := Choose(problem)
	require.NoError(t, err)
	const f32, bf16, int8 = 400, 200, 100 + 2*2 // an activation
	for _, c := range []struct {
		wire Wire
		sent [3]int64
	}{
		{Wire{}, [3]int64{4*f32 + 1024, 8 * f32, 4*f32 + 1024}},
		{Wire{Activations: wire.BF16}, [3]int64{4*bf16 + 1024, 8 * bf16, 4*bf16 + 1024}},
		{Wire{wire.Int8, wire.BF16}, [3]int64{4*int8 + 512, 8 * int8, 4*int8 + 512}},
	} {
		problem.Wire = c.wire
		p, err := Choose(problem)
		require.NoError(t, err)
		assert.Equal(t, c.sent, [3]int64{p.Stages[0].Sent, p.Stages[1].Sent, p.Stages[2].Sent}, "%+v", c.wire)
		assert.Equal(t, exact.StepSeconds, p.StepSeconds)
	}
	problem.Schedule, problem.Devices, problem.Cut = generate(t, "interleaved", 1, 2, 4), problem.Devices[:1], []int{2}
	p, err := Choose(problem)
	require.NoError(t, err)
	assert.Zero(t, p.Stages[0].Sent, "one stage sends nothing")
}
