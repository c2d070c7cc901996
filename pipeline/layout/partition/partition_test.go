package partition

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/units"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func generate(t testing.TB, name string, stages, chunks, microbatches int) *schedule.Schedule {
	t.Helper()
	s, err := schedule.Generate(name, schedule.Options{Stages: stages, Chunks: chunks, Microbatches: microbatches,
		Batches: schedule.PatternBatches})
	require.NoError(t, err)
	return s
}

// model is an embedding, n equal layers and a head.
func model(layers int) []Unit {
	us := []Unit{{Name: "embed", Parameters: 400, State: 800, Kept: 10, Scratch: Scratch{Working: 20, Backward: 20, Recomputing: 40},
		Out: 50}}
	for i := range layers {
		us = append(us, Unit{Name: fmt.Sprintf("layers.%d", i), Parameters: 100, State: 200, Kept: 300, Enters: 50,
			Scratch: Scratch{Working: 60, Backward: 60, Recomputing: 360}, Out: 50})
	}
	return append(us, Unit{Name: "head", Parameters: 400, State: 800, Kept: 200, Enters: 50,
		Scratch: Scratch{Working: 90, Backward: 90, Recomputing: 290}})
}

// device takes a second for a layer's forward and two for its backward.
func device(name string, speed float64, units []Unit) Device {
	ts := make([]Time, len(units))
	for i := range ts {
		ts[i] = Time{Forward: 1 / speed, Backward: 2 / speed}
	}
	ts[0] = Time{}
	return Device{Name: name, Times: ts}
}

func devices(units []Unit, speeds ...float64) (ds []Device) {
	for i, v := range speeds {
		ds = append(ds, device(fmt.Sprintf("gpu:%d", i), v, units))
	}
	return ds
}

func TestEqualDevicesGetEqualWork(t *testing.T) {
	us := model(7)
	p, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 100})
	require.NoError(t, err)
	assert.Equal(t, []int{5}, p.Cut) // four layers; three and the head
	assert.Equal(t, []int{0, 1}, p.Devices)
	assert.Equal(t, []bool{false, false}, p.Recompute)
	assert.Equal(t, "all cuts, with devices that are alike", p.Search)
	for _, s := range p.Stages {
		assert.InDelta(t, 12, s.Seconds, 1e-9)
	}
}

func TestFasterDeviceGetsMore(t *testing.T) {
	us := model(8) // nine units of three seconds
	p, err := Choose(Problem{Units: us, Devices: devices(us, 1, 2), Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 100})
	require.NoError(t, err)
	assert.Equal(t, []int{4}, p.Cut)
	assert.Equal(t, []int{0, 1}, p.Devices, "both orders are as fast: the given one")
	assert.Equal(t, "all cuts, with all 2 orders of the devices", p.Search)
}

func TestOrderOfDevicesIsChosen(t *testing.T) {
	us := model(8)
	us[0].Parameters = 1e6 // the embedding fits on the second device only
	problem := Problem{Units: us, Devices: devices(us, 1, 2), Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 100}
	problem.Devices[0].Memory = 1e5
	p, err := Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 0}, p.Devices)
	assert.Equal(t, []int{7}, p.Cut)
	problem.KeepOrder = true
	_, err = Choose(problem)
	assert.Equal(t, &InfeasibleError{Stage: 0, Units: "embed", Device: "gpu:0", Sharing: 1, Available: 1e5, Recompute: Auto,
		Needed: Memory{Weights: 1e6, Gradients: 1e6, Optimizer: 800, Activations: 2*50 + 2*10, Working: 20}}, err)
}

func TestAUnitAStage(t *testing.T) {
	us := model(2)
	p, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1, 1, 1), Schedule: generate(t, "2bw", 4, 1, 4), Tokens: 1})
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2, 3}, p.Cut)
	_, err = Choose(Problem{Units: us, Devices: devices(us, 1, 1, 1, 1, 1), Schedule: generate(t, "2bw", 5, 1, 5), Tokens: 1})
	assert.EqualError(t, err, "stages: found 5, expected at most one chunk per unit: the model has 4; 5 stages of 1 chunks have 5")
}

func TestOneStage(t *testing.T) {
	us := model(2)
	p, err := Choose(Problem{Units: us, Devices: devices(us, 1), Schedule: generate(t, "1f1b", 1, 1, 4), Tokens: 1})
	require.NoError(t, err)
	assert.Empty(t, p.Cut)
	assert.Equal(t, Memory{Weights: 1000, Gradients: 1000, Optimizer: 2000, Activations: 10 + 350 + 350 + 250, Working: 60 + 50 + 50},
		p.Stages[0].Memory)
	assert.Zero(t, p.Stages[0].Transfer)
}

func TestMemoryForcesRecomputation(t *testing.T) {
	us := model(7)
	problem := Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 1}
	free, err := Choose(problem)
	require.NoError(t, err)
	need := free.Stages[0].Memory.Total()
	// A byte less on either device: the first stage, with two microbatches in flight, gives up what it keeps or a
	// layer.
	for i := range problem.Devices {
		problem.Devices[i].Memory = need - 1
	}
	tight, err := Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []int{4}, tight.Cut, "a layer less on the first stage costs less than recomputing four")
	// Where the cut is given, it recomputes.
	problem.Cut = []int{5}
	fixed, err := Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []bool{true, false}, fixed.Recompute)
	assert.InDelta(t, free.Stages[0].Backward+free.Stages[0].Forward, fixed.Stages[0].Backward, 1e-9)
	assert.Less(t, fixed.Stages[0].Memory.Total(), need)
	problem.Recompute = Never
	_, err = Choose(problem)
	assert.ErrorContains(t, err, fmt.Sprintf("stage 0 (embed to layers.3) does not fit on gpu:0: %s needed", units.Bytes(need)))
	assert.ErrorContains(t, err, units.Bytes(need-1)+" available without recomputation")
	problem.Recompute, problem.Devices[0].Memory, problem.Devices[1].Memory = Always, 0, 0
	always, err := Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []bool{true, true}, always.Recompute)
}

func TestStagesOnOneDeviceShareIt(t *testing.T) {
	us := model(8)
	d := device("gpu:0", 1, us)
	problem := Problem{Units: us, Devices: []Device{d, device("gpu:1", 1, us), d}, Schedule: generate(t, "1f1b", 3, 1, 4), Tokens: 1}
	p, err := Choose(problem)
	require.NoError(t, err)
	work := map[string]float64{}
	for _, s := range p.Stages {
		work[s.Device] += s.Forward + s.Backward
	}
	assert.InDelta(t, 15, work["gpu:1"], 1e-9, "five units: a device for one stage")
	assert.InDelta(t, 12, work["gpu:0"], 1e-9, "two stages of two units")
	// Memory is for both together.
	need := int64(0)
	for _, s := range p.Stages {
		if s.Device == "gpu:0" {
			need += s.Memory.Total()
		}
	}
	for i := range problem.Devices {
		if problem.Devices[i].Name == "gpu:0" {
			problem.Devices[i].Memory = need
		}
	}
	same, err := Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, p.Cut, same.Cut)
	problem.Devices[0].Memory, problem.Devices[2].Memory = 2000, 2000
	_, err = Choose(problem)
	assert.ErrorContains(t, err, "1000 B available, a share of 2")
}

func TestTransfersCount(t *testing.T) {
	us := model(6)
	us[3].Out = 1 // between layers.2 and layers.3 little passes
	problem := Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 1}
	p, err := Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []int{4}, p.Cut, "the even cut has three layers before, and three and the head after, or four")
	for i := range problem.Devices {
		problem.Devices[i].Link = Link{Latency: 0.5, Bandwidth: 10}
	}
	p, err = Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []int{4}, p.Cut)
	assert.InDelta(t, 2*(0.5+0.1), p.Stages[0].Transfer, 1e-9)
	us[3].Out, us[2].Out, us[4].Out = 50, 50, 1
	p, err = Choose(problem)
	require.NoError(t, err)
	assert.Equal(t, []int{5}, p.Cut)
}

func TestCopiesAreExchanged(t *testing.T) {
	us := model(2)
	us[3].Shared, us[3].Parameters = 400, 4 // a tied head
	problem := Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "2bw", 2, 1, 4), Tokens: 1, Cut: []int{2}, Replicas: 2}
	for i := range problem.Devices {
		problem.Devices[i].Link = Link{Bandwidth: 1}
	}
	p, err := Choose(problem)
	require.NoError(t, err)
	first, last := p.Stages[0], p.Stages[1]
	assert.EqualValues(t, 2*500, first.Memory.Weights)
	assert.EqualValues(t, 2*500+2*400, first.Memory.Gradients, "its own and the other replica's, and the head's in both")
	assert.EqualValues(t, 2*(104+400), last.Memory.Weights)
	assert.EqualValues(t, 2*104+400, last.Memory.Gradients)
	assert.InDelta(t, 2*500+2*2*400, first.Exchange, 1e-9)
	assert.InDelta(t, 2*104+2*400, last.Exchange, 1e-9)
	assert.InDelta(t, first.Exchange/4, first.Seconds, 1e-9, "slower than its work: it bounds the pace")
	problem.Schedule, problem.Replicas = generate(t, "1f1b", 2, 1, 4), 1
	q, err := Choose(problem)
	require.NoError(t, err)
	s := q.Stages[1]
	assert.InDelta(t, s.Forward+s.Backward+s.Transfer+s.Exchange/4, s.Seconds, 1e-9, "without delay nothing hides it")
}

func TestTheCutGivenIsChecked(t *testing.T) {
	us := model(4)
	for _, c := range []struct {
		cut  []int
		want string
	}{
		{[]int{3}, `cut: found ["layers.2"], expected the first unit of each chunk except the first: 2 units`},
		{[]int{3, 3}, "cut: found [3 3], expected ascending units from 1 to 5 (0 is the embedding, 5 the head)"},
		{[]int{0, 3}, "cut: found [0 3], expected ascending units"},
		{[]int{3, 6}, "cut: found [3 6], expected ascending units"},
	} {
		_, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1, 1), Schedule: generate(t, "gpipe", 3, 1, 4), Cut: c.cut})
		assert.ErrorContains(t, err, c.want)
		assert.IsType(t, new(fielderror.Error), err)
	}
	p, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1, 1), Schedule: generate(t, "gpipe", 3, 1, 4), Cut: []int{1, 2}})
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2}, p.Cut)
}

func TestSchedulesThatCannotBePlanned(t *testing.T) {
	us := model(4)
	_, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "pipedream", 2, 1, 1)})
	assert.ErrorContains(t, err, "expected one with a gradient per batch, whose microbatches share weights")
	_, err = Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "eval", 2, 1, 1)})
	assert.ErrorContains(t, err, "expected a schedule that trains")
	_, err = Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "1f1b", 2, 1, 1), Recompute: "often"})
	assert.ErrorContains(t, err, `found "often", expected auto, always or never`)
}

// bruteForce is the pace of the best partition, by trying every cut, order and choice of recomputation, each costed
// anew.
func bruteForce(p Problem) (best float64) {
	best = math.Inf(1)
	try := func(cut []int) {
		permute(len(p.Devices), func(order []int) {
			for mask := range 1 << len(order) {
				if pace := naive(p, cut, order, mask); pace < best {
					best = pace
				}
			}
		})
	}
	var cuts func(before []int)
	cuts = func(before []int) {
		if len(before) == p.Schedule.Stages-1 {
			try(before)
			return
		}
		from := 1
		if len(before) > 0 {
			from = before[len(before)-1] + 1
		}
		for u := from; u < len(p.Units); u++ {
			cuts(append(slices.Clone(before), u))
		}
	}
	cuts(nil)
	return best
}

func permute(n int, f func([]int)) {
	var extend func(order []int)
	extend = func(order []int) {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if !slices.Contains(order, i) {
				extend(append(slices.Clone(order), i))
			}
		}
	}
	extend(nil)
}

// naive is the slowest stage's time of a 1f1b or 2bw pipeline without replicas; infinite where memory is exceeded.
func naive(p Problem, cut, order []int, recomputed int) (slowest float64) {
	stages, n := len(order), len(p.Units)
	bounds := slices.Concat([]int{0}, cut, []int{n})
	for s, at := range order {
		d := p.Devices[at]
		first, last := bounds[s], bounds[s+1]
		flying := int64(min(stages-s, p.Schedule.Microbatches))
		again := recomputed&(1<<s) != 0
		seconds, bytes, kept, scratch := 0.0, flying*p.Given, int64(0), int64(0)
		for u := first; u < last; u++ {
			before := kept
			seconds += d.Times[u].Forward + d.Times[u].Backward + d.Times[u].Update/float64(p.Schedule.Microbatches)
			if again {
				seconds += d.Times[u].Forward
			}
			bytes += int64(2+p.Schedule.Delay)*p.Units[u].Parameters + p.Units[u].State
			kept += p.Units[u].Kept
			bytes += flying * p.Units[u].Given
			if u > first {
				kept += p.Units[u].Enters
			}
			through := int64(0) // passes from unit to unit of the stage
			if u > first {
				through += p.Units[u-1].Out
			}
			if u < last-1 {
				through += p.Units[u].Out
			}
			scratch = max(scratch, p.Units[u].Working+through)
			if again {
				scratch = max(scratch, before+p.Units[u].Recomputing+through)
				if u > first {
					scratch = max(scratch, before+p.Units[u].Enters+p.Units[u].Recomputing+through)
				}
				bytes += flying * p.Units[u].Always
			} else {
				scratch = max(scratch, p.Units[u].Backward+through)
			}
		}
		if !again {
			bytes += flying * kept
		}
		bytes += scratch
		if first > 0 {
			bytes += (flying + 1) * p.Units[first-1].Out
			seconds += 2 * (d.Link.Latency + float64(p.Units[first-1].Out)/d.Link.Bandwidth)
		}
		if last < n {
			bytes += 2 * p.Units[last-1].Out
			seconds += 2 * (d.Link.Latency + float64(p.Units[last-1].Out)/d.Link.Bandwidth)
		}
		if d.Memory > 0 && bytes > d.Memory {
			return math.Inf(1)
		}
		slowest = max(slowest, seconds)
	}
	return slowest
}

func randomProblem(t *testing.T, rng *rand.Rand) Problem {
	stages := 1 + rng.IntN(4)
	units := max(stages, 2+rng.IntN(6))
	p := Problem{Tokens: 1, Given: rng.Int64N(20), Schedule: generate(t, []string{"1f1b", "2bw"}[rng.IntN(2)], stages, 1,
		stages+rng.IntN(4))}
	for u := range units {
		enters := int64(0)
		if u > 0 && rng.IntN(4) > 0 {
			enters = p.Units[u-1].Out
		}
		u := Unit{Name: fmt.Sprint("unit ", u), Parameters: rng.Int64N(100), State: rng.Int64N(100),
			Kept: rng.Int64N(300), Enters: enters, Given: rng.Int64N(20), Scratch: Scratch{Working: rng.Int64N(100)}, Out: rng.Int64N(60)}
		u.Backward, u.Recomputing, u.Always = 7*u.Working%100, u.Kept+11*u.Working%100, u.Kept%20
		p.Units = append(p.Units, u)
	}
	for d := range stages {
		e := Device{Name: fmt.Sprint("gpu:", d), Link: Link{Latency: rng.Float64() / 10, Bandwidth: 100 + 1000*rng.Float64()}}
		for range units {
			e.Times = append(e.Times, Time{Forward: rng.Float64(), Backward: 2 * rng.Float64(), Update: rng.Float64()})
		}
		if rng.IntN(3) > 0 {
			e.Memory = 300 + rng.Int64N(3000)
		}
		p.Devices = append(p.Devices, e)
	}
	return p
}

func TestAgainstBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	feasible, recomputed, problems := 0, 0, tier.Times(t, 1500, 300)
	for i := range problems {
		p := randomProblem(t, rng)
		want := bruteForce(p)
		got, err := Choose(p)
		if math.IsInf(want, 1) {
			require.IsType(t, new(InfeasibleError), err, "problem %d", i)
			continue
		}
		require.NoError(t, err, "problem %d", i)
		feasible++
		mask, slowest := 0, 0.0
		for s, again := range got.Recompute {
			slowest = max(slowest, got.Stages[s].Seconds)
			if again {
				mask |= 1 << s
				recomputed++
			}
		}
		require.InDelta(t, want, slowest, 1e-9, "problem %d: %+v", i, got)
		require.InDelta(t, want, naive(p, got.Cut, got.Devices, mask), 1e-9, "problem %d: what the plan says of itself", i)
	}
	assert.Greater(t, feasible, problems/3)
	assert.Greater(t, problems-feasible, problems/15)
	assert.Greater(t, recomputed, problems/15)
}

// More memory, a faster device or a faster link never make a plan slower.
func TestMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pace := func(p Problem) float64 {
		plan, err := Choose(p)
		if err != nil {
			return math.Inf(1)
		}
		slowest := 0.0
		for _, s := range plan.Stages {
			slowest = max(slowest, s.Seconds)
		}
		return slowest
	}
	problems := tier.Times(t, 300, 75)
	for i := range problems {
		p := randomProblem(t, rng)
		before := pace(p)
		d := &p.Devices[rng.IntN(len(p.Devices))]
		for _, change := range []func(){
			func() { d.Memory += d.Memory / 4 },
			func() { d.Link.Bandwidth *= 2 },
			func() {
				d.Times = slices.Clone(d.Times)
				d.Times[rng.IntN(len(d.Times))] = Time{}
			},
		} {
			change()
			after := pace(p)
			require.LessOrEqual(t, after, before+1e-12, "problem %d", i)
			before = after
		}
	}
}

func TestChunks(t *testing.T) {
	us := model(7)
	p, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "interleaved", 2, 2, 4), Tokens: 1})
	require.NoError(t, err)
	assert.Equal(t, []int{3, 5, 7}, p.Cut)
	assert.Equal(t, []Chunk{{0, 3}, {5, 7}}, p.Stages[0].Chunks)
	assert.Equal(t, []Chunk{{3, 5}, {7, 9}}, p.Stages[1].Chunks)
	_, err = Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "interleaved", 2, 5, 4), Tokens: 1})
	assert.ErrorContains(t, err, "stages: found 2, expected at most one chunk per unit: the model has 9; 2 stages of 5 chunks have 10")
}

// The search over chunks is not exact; on small problems it is never far from the best of all cuts in the given order.
func TestChunksAgainstAllCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	exact, problems := 0, tier.Times(t, 100, 25)
	for i := range problems {
		p := randomProblem(t, rng)
		units := 6 + rng.IntN(3)
		p.Schedule, p.KeepOrder, p.Units, p.Devices = generate(t, "interleaved", 2, 2, 4), true, nil, nil
		for u := range units {
			p.Units = append(p.Units, Unit{Name: fmt.Sprint("unit ", u), Out: rng.Int64N(60)})
		}
		for d := range 2 {
			e := Device{Name: fmt.Sprint("gpu:", d)}
			for range units {
				e.Times = append(e.Times, Time{Forward: rng.Float64(), Backward: 2 * rng.Float64(), Update: rng.Float64()})
			}
			p.Devices = append(p.Devices, e)
		}
		slowest := func(p Problem) (x float64) {
			plan, err := Choose(p)
			require.NoError(t, err)
			for _, s := range plan.Stages {
				x = max(x, s.Seconds)
			}
			return x
		}
		got, best := slowest(p), math.Inf(1)
		for a := 1; a < units-2; a++ {
			for b := a + 1; b < units-1; b++ {
				for c := b + 1; c < units; c++ {
					p.Cut = []int{a, b, c}
					best = min(best, slowest(p))
				}
			}
		}
		require.LessOrEqual(t, got, 1.5*best, "problem %d", i)
		if got <= best+1e-12 {
			exact++
		}
	}
	assert.Greater(t, exact, problems/2)
}
