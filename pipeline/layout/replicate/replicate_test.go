package replicate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const mbit = 1e6 / 8

// homes are machines at sites of their own, of so many tokens a second, which 1,000 tokens a step and 135 M parameters
// in int4 keep busy.
func homes(speeds ...float64) Problem {
	p := Problem{Tokens: 1000, MostStages: 1}
	for i, s := range speeds {
		p.Machines = append(p.Machines, Machine{Name: fmt.Sprint("m", i), Site: i, TokensPerSec: s, Fits: true})
		p.Sites = append(p.Sites, Site{Name: fmt.Sprint("m", i), Site: schedule.Site{Up: 20 * mbit, Down: 100 * mbit, Latency: 0.02}})
	}
	p.Pipeline = func(machines []int) (Pipeline, error) {
		sum := 0.0
		for _, m := range machines {
			sum += p.Machines[m].TokensPerSec
		}
		return Pipeline{StepSeconds: float64(p.Tokens) / sum, TokensPerSec: sum, HostRate: 10e9, Stages: len(machines)}, nil
	}
	weights := slices.Repeat([]float64{3.54e6}, 31)
	weights[0] = 28.3e6
	for _, n := range weights {
		p.Messages, p.Weights = append(p.Messages, n*132/256), append(p.Weights, 4*n)
	}
	return p
}

// Home links that carry 20 Mbit up and 100 down with 20 ms cost replicas next to nothing, at the period that is chosen.
func TestHomesAreAsFastAsTheirSum(t *testing.T) {
	for n, times := range map[int]float64{2: 1.95, 4: 3.9, 8: 7.7} {
		p := homes(slices.Repeat([]float64{1000}, n)...)
		plan, err := Choose(p)
		require.NoError(t, err)
		assert.Len(t, plan.Replicas, n)
		assert.Greater(t, plan.TokensPerSec, 1000*times, "%d", n)
		assert.Less(t, plan.TokensPerSec, 1000*float64(n), "%d", n)
		assert.Less(t, plan.Late, plan.Period)
		assert.Zero(t, plan.Waiting, "no link is waited for")
		assert.Equal(t, -1, plan.Pace)
		for _, l := range plan.Links {
			assert.LessOrEqual(t, l.UpShare, busy)
		}
		if n > 2 { // of two replicas the work of exchanges counts more
			assert.Greater(t, plan.Links[0].UpShare, busy-0.05, "the coordinator's is as busy as it may be")
		}

		// A simulation of the exchange plan for a long time has the same tokens a second and waits for nothing.
		e := schedule.Exchanges{Fragments: 31, Period: plan.Period, Late: plan.Late, Last: 10 * plan.Period}
		r, err := schedule.SimulateExchanges(e, p.costs(plan.Replicas), 10*plan.Period-1)
		require.NoError(t, err)
		assert.InEpsilon(t, plan.TokensPerSec, float64(n*p.Tokens)/r.Step, 0.01)
		for i := range plan.Replicas {
			assert.Zero(t, r.Replicas[i].Waited)
		}
	}
}

// Replicas that relay what the coordinator returns need shorter periods, unless its connection is fast.
func TestReplicasPassOn(t *testing.T) {
	for n, shorter := range map[int]float64{2: 1, 4: 0.6, 8: 0.3, 16: 0.3} {
		p := homes(slices.Repeat([]float64{1000}, n)...)
		through, err := Choose(p)
		require.NoError(t, err)
		p.Direct = true
		plan, err := Choose(p)
		require.NoError(t, err)
		assert.LessOrEqual(t, float64(plan.Period), shorter*float64(through.Period)+1, "%d", n)
		assert.LessOrEqual(t, plan.Late, plan.Period, "%d", n)
		assert.Zero(t, plan.Waiting)
		assert.Equal(t, n > 2, plan.Copies > 0)
		for _, l := range plan.Links {
			assert.LessOrEqual(t, max(l.UpShare, l.DownShare), busy)
		}
		p.Sites[0].Up, p.Sites[0].Down = 1000*mbit, 1000*mbit
		plan, err = Choose(p)
		require.NoError(t, err)
		assert.Zero(t, plan.Copies)
	}
}

// A coordinator with a fast connection makes the period short, and a period that is given is kept.
func TestPeriods(t *testing.T) {
	p := homes(1000, 1000, 1000, 1000)
	slow, err := Choose(p)
	require.NoError(t, err)
	p.Sites[0].Up, p.Sites[0].Down = 1000*mbit, 1000*mbit
	fast, err := Choose(p)
	require.NoError(t, err)
	assert.Less(t, fast.Period, slow.Period)
	p.Period, p.Late = 10, 2
	given, err := Choose(p)
	require.NoError(t, err)
	assert.Equal(t, 10, given.Period)
	assert.Greater(t, given.Needed, 2)
	assert.Positive(t, given.Waiting)
	assert.Less(t, given.TokensPerSec, fast.TokensPerSec)
}

// A machine whose pace costs the others more than it adds, or whose connection is too slow, is left out.
func TestLeftOut(t *testing.T) {
	p := homes(1000, 1000, 1000, 300)
	plan, err := Choose(p)
	require.NoError(t, err)
	assert.Len(t, plan.Replicas, 3)
	assert.Equal(t, []LeftOut{{"m3", "too slow: all others would wait"}}, plan.LeftOut)

	p = homes(1000, 1000, 900, 1000)
	p.Sites[1].Up = 0.5 * mbit
	p.Sites[0].Up = 1000 * mbit
	plan, err = Choose(p)
	require.NoError(t, err)
	assert.Equal(t, []LeftOut{{"m1", "connection too slow"}}, plan.LeftOut)
	assert.Equal(t, 1, plan.Pace, "the others wait for the slower one")

	p = homes(1000, 1000)
	p.Sites[0].Up, p.Sites[1].Up = 0.1*mbit, 0.1*mbit
	plan, err = Choose(p)
	require.NoError(t, err)
	assert.Len(t, plan.Replicas, 1, "one machine alone is faster")
	assert.Equal(t, plan.Alone.TokensPerSec, plan.TokensPerSec)
	assert.Zero(t, plan.Period)
}

// Machines of a site make pipelines, of equally many stages at all sites.
func TestSites(t *testing.T) {
	p := homes(append(slices.Repeat([]float64{500}, 8), 50)...)
	p.MostStages = 4
	for i := range p.Machines {
		p.Machines[i].Site = i / 4
	}
	p.Sites = p.Sites[:3]
	plan, err := Choose(p)
	require.NoError(t, err)
	require.Len(t, plan.Replicas, 2)
	assert.Equal(t, []string{"m4", "m5", "m6", "m7"}, plan.Replicas[1].Machines)
	assert.Equal(t, "m8", plan.LeftOut[0].Machine)
	assert.Contains(t, plan.LeftOut[0].Why, "for a pipeline of 4 stages")

	for i := range p.Machines {
		p.Machines[i].Fits = false
	}
	p.Pipeline = func([]int) (Pipeline, error) { return Pipeline{}, errors.New("it does not fit") }
	_, err = Choose(p)
	assert.ErrorIs(t, err, ErrTooLarge)
}

// Five hundred machines are planned at once, and the simulation of few sites stands for that of all.
func TestHundredsOfMachines(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var speeds []float64
	for range 500 {
		speeds = append(speeds, 500+1000*random.Float64())
	}
	p := homes(speeds...)
	for i := range p.Sites {
		p.Sites[i].Up *= 0.5 + random.Float64()
	}
	p.Sites = append(p.Sites, Site{Name: "server", Site: schedule.Site{Up: 10e3 * mbit, Down: 10e3 * mbit, Latency: 0.005}})
	p.Owner = 500
	plan, err := Choose(p)
	require.NoError(t, err)
	assert.Greater(t, len(plan.Replicas), 300)
	assert.Greater(t, plan.TokensPerSec, 150e3)
	assert.Less(t, plan.Period, 256)
	e := schedule.Exchanges{Fragments: 31, Period: plan.Period, Late: plan.Late, Last: schedule.Endless}
	few, err := schedule.SimulateExchanges(e, p.merged(p.costs(plan.Replicas)), plan.Period)
	require.NoError(t, err)
	all, err := schedule.SimulateExchanges(e, p.costs(plan.Replicas), plan.Period)
	require.NoError(t, err)
	assert.InEpsilon(t, all.Makespan, few.Makespan, 0.01)
	assert.InDelta(t, all.Lateness, few.Lateness, 1)
}
