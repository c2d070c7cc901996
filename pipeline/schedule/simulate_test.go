package schedule

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func simulated(t *testing.T, s *Schedule, c Costs) (*Result, map[string][2]float64) {
	t.Helper()
	r, err := Simulate(s, c)
	require.NoError(t, err)
	at := map[string][2]float64{}
	for _, e := range r.Events {
		at[name(e.Stage, "%v", e.Action)] = [2]float64{e.Start, e.End}
	}
	return r, at
}

// By hand: two stages, 1F1B, two microbatches. Transfers of one direction follow one another.
func TestSimulateByHand(t *testing.T) {
	s, err := Generate("1f1b", Options{Stages: 2, Microbatches: 2})
	require.NoError(t, err)
	c := Costs{VirtualStages: []Cost{{Forward: 1, Backward: 2, Update: 3, Transfer: 1.5, Activation: 10},
		{Forward: 2, Backward: 1, Update: 1, Transfer: 9, Activation: 7}}}
	r, at := simulated(t, s, c)
	assert.Equal(t, map[string][2]float64{
		"0 F0.0": {0, 1}, "0 F1.0": {1, 2}, // sent until 2.5 and 4
		"1 F0.0": {2.5, 4.5}, "1 B0.0": {4.5, 5.5}, "1 F1.0": {5.5, 7.5}, "1 B1.0": {7.5, 8.5}, "1 U0": {8.5, 9.5}, // sent until 7 and 10
		"0 B0.0": {7, 9}, "0 B1.0": {10, 12}, "0 U0": {12, 15},
	}, at)
	assert.Equal(t, 15.0, r.Makespan)
	assert.Equal(t, []StageResult{{Busy: 9, Idle: 6, Activation: 20}, {Busy: 7, Idle: 8, Activation: 7}}, r.Stages)
	assert.InDelta(t, 14.0/30, r.Bubble, 1e-12)
	assert.Nil(t, r.Steady)

	c.Exchange = 0.5
	s, err = Communicate(s, Copies{Tied: true})
	require.NoError(t, err)
	_, at = simulated(t, s, c)
	assert.Equal(t, [2]float64{12.5, 13.5}, at["1 U0"], "stage 0 has its gradient norms at 12, the other stage waits for them")
	assert.Equal(t, [2]float64{12, 15}, at["0 U0"], "stage 1's vote has come at 9")
}

// With tied embeddings the first stage computes its gradient norms when the last stage's gradients have come. The last
// stage goes on when the first stage's weights have come. In 2BW there is time for that.
func TestSimulateTiedEmbeddings(t *testing.T) {
	s, err := Generate("gpipe", Options{Stages: 2, Microbatches: 1, Batches: 2})
	require.NoError(t, err)
	s, err = Communicate(s, Copies{Tied: true})
	require.NoError(t, err)
	_, at := simulated(t, s, Costs{VirtualStages: []Cost{Even(1, 1, 4), Even(1, 1, 1)}, Exchange: 5})
	assert.Equal(t, [2]float64{2, 3}, at["1 B0.0"], "its gradients come at 8, to a stage that is done at 4")
	assert.Equal(t, [2]float64{8, 12}, at["0 U0"])
	assert.Equal(t, [2]float64{13, 14}, at["1 U0"], "stage 0 has its gradient norms at 8")
	assert.Equal(t, [2]float64{12, 13}, at["0 F0.1"])
	assert.Equal(t, [2]float64{17, 18}, at["1 F0.1"], "the weights come at 17")

	for exchange, waits := range map[float64]bool{4: false, 40: true} {
		assert.Equal(t, waits, bubbleOf2BW(t, 12, exchange, false, Copies{Tied: true}) > 1e-9, "an exchange of %v", exchange)
	}
}

// bubbleOf2BW is the steady bubble of 2BW on 4 stages with 12 microbatches of 1 + 2 units of time. split splits each
// backward, as training does.
func bubbleOf2BW(t *testing.T, stale int, exchange float64, split bool, c Copies) float64 {
	g, err := New("2bw", Options{Stages: 4, Microbatches: 12, Stale: stale, Batches: 8})
	require.NoError(t, err)
	if split {
		g = g.SplitBackward()
	}
	s, err := g.Schedule()
	require.NoError(t, err)
	s, err = Communicate(s, c)
	require.NoError(t, err)
	r, _ := simulated(t, s, Costs{VirtualStages: []Cost{Even(1, 2, 1)}, Exchange: exchange})
	return r.Steady.Bubble
}

// With the fewest stale microbatches the first stage updates as soon as it has finished a batch. That is as fast as 2BW
// with all stale if the norms of the other stages have arrived by then: the second stage finishes a backward earlier.
// If backwards are split, norms have three quarters of a backward, and the other waits of whole backwards do not occur.
// Each further stale microbatch allows norms a forward and a backward more.
func TestLateGradientNorms(t *testing.T) {
	for _, split := range []bool{false, true} {
		first := 2.0
		if split {
			first = 1.5
		}
		bubble := func(stale int, exchange float64) float64 { return bubbleOf2BW(t, stale, exchange, split, Copies{}) }
		for stale := 3; stale <= 6; stale++ {
			latest := first + 3*float64(stale-3)
			for _, e := range []float64{0, 1, latest / 2, latest} {
				assert.InDelta(t, bubble(12, e), bubble(stale, e), 1e-9, "split %v, %d stale, an exchange of %v", split, stale, e)
				if split {
					assert.Zero(t, bubble(stale, e), "%d stale, an exchange of %v", stale, e)
				}
			}
			assert.Greater(t, bubble(stale, latest+2), bubble(12, latest+2)+0.01, "split %v, %d stale, an exchange of %v", split, stale,
				latest+2)
		}
	}
}

func TestEvaluationHoldsOneMicrobatch(t *testing.T) {
	s, err := Generate("eval", Options{Stages: 2, Microbatches: 3})
	require.NoError(t, err)
	r, _ := simulated(t, s, Costs{VirtualStages: []Cost{{Forward: 1, Activation: 5}}})
	assert.Equal(t, []StageResult{{Busy: 3, Idle: 1, Activation: 5}, {Busy: 3, Idle: 1, Activation: 5}}, r.Stages)
}

// A replica's updates are made elsewhere: its gradients go there, and weights come back.
func TestSimulateAReplica(t *testing.T) {
	s, err := Generate("gpipe", Options{Stages: 2, Microbatches: 1, Batches: 2})
	require.NoError(t, err)
	s, err = Communicate(s, Copies{Replica: true})
	require.NoError(t, err)
	_, at := simulated(t, s, Costs{VirtualStages: []Cost{Even(1, 1, 1)}, Exchange: 5})
	assert.Equal(t, [2]float64{14, 15}, at["0 F0.1"], "all gradients at 4, and two messages")
	assert.NotContains(t, at, "0 U0")
}

func TestCostsThatAreRefused(t *testing.T) {
	s, err := Generate("gpipe", Options{Stages: 3, Microbatches: 1})
	require.NoError(t, err)
	for want, c := range map[string]Costs{
		"found costs of 2 virtual stages, expected 1 for all or 3":                {VirtualStages: make([]Cost, 2)},
		"costs of virtual stage 0: found -1, expected numbers from 0 to 1e+100":   {VirtualStages: []Cost{{Forward: -1}}},
		"costs of virtual stage 2: found NaN, expected numbers from 0 to 1e+100":  {VirtualStages: []Cost{{}, {}, {Update: math.NaN()}}},
		"costs of virtual stage 0: found +Inf, expected numbers from 0 to 1e+100": {VirtualStages: []Cost{{}}, Exchange: math.Inf(1)},
	} {
		_, err := Simulate(s, c)
		assert.ErrorContains(t, err, want)
	}
	s.Actions[0] = nil
	_, err = Simulate(s, Costs{VirtualStages: []Cost{{}}})
	assert.ErrorContains(t, err, "stage 0: F0.0 is missing")
	_, known := Closed("mine", Options{}, Cost{})
	assert.False(t, known)
	r, err := Simulate(parse(t, "F0 B0 U0"), Costs{VirtualStages: []Cost{{}}})
	require.NoError(t, err)
	assert.Zero(t, r.Bubble)
}
