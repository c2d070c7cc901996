package partition

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// even is a model of equal units without transfers on devices that are alike, so that the closed forms of the field
// hold.
func even(t *testing.T, name string, stages, chunks, microbatches int) Plan {
	t.Helper()
	p := Problem{Schedule: generate(t, name, stages, chunks, microbatches), Tokens: 640}
	for range stages * chunks * 2 {
		p.Units = append(p.Units, Unit{Name: "unit"})
	}
	for i := range stages {
		d := Device{Name: string(rune('a' + i))}
		for range p.Units {
			d.Times = append(d.Times, Time{Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1})
		}
		p.Devices = append(p.Devices, d)
	}
	plan, err := Choose(p)
	require.NoError(t, err)
	return plan
}

// Bubbles: (p−1)/(m+p−1) of gpipe and 1f1b (arXiv 2104.04473, §2.2), (p−1)/(v·m+p−1) interleaved, (p−1)(F+I−W)/(…) of
// zb-h1 (arXiv 2401.10241, table 2), none of 2bw.
func TestBubblesOfTheField(t *testing.T) {
	const p, m, work = 4, 8, 6.
	for _, c := range []struct {
		name   string
		chunks int
		step   float64
	}{
		{"gpipe", 1, (m + p - 1) * work},
		{"1f1b", 1, (m + p - 1) * work},
		{"interleaved", 2, 2*m*work + (p-1)*work}, // as many units a chunk as above a stage
		{"zb-h1", 1, m*work + (p-1)*2},
		{"2bw", 1, m * work},
	} {
		plan := even(t, c.name, p, c.chunks, m)
		assert.InDelta(t, c.step, plan.StepSeconds, 1e-9, c.name)
		assert.InDelta(t, 640/c.step, plan.TokensPerSec, 1e-9, c.name)
		busy := m * work * float64(c.chunks)
		assert.InDelta(t, 1-busy/c.step, plan.Bubble, 1e-9, c.name)
	}
}

func TestOneDeviceForAllStagesIsNeverIdle(t *testing.T) {
	us := model(6)
	d := device("gpu:0", 1, us)
	p, err := Choose(Problem{Units: us, Devices: []Device{d, d}, Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 1})
	require.NoError(t, err)
	assert.InDelta(t, 4*7*3, p.StepSeconds, 1e-9)
	assert.InDelta(t, 0, p.Bubble, 1e-9)
}

// Stages on a device that computes for all of them at once are as fast as on devices of their own, and share its
// memory.
func TestParallelDevice(t *testing.T) {
	plan := func(parallel bool, names ...string) Plan {
		us := model(6)
		p := Problem{Units: us, Schedule: generate(t, "1f1b", 2, 1, 4), Replicas: 2, Tokens: 640}
		for _, name := range names {
			d := device(name, 1, us)
			d.Parallel, d.Ranks = parallel, 4
			p.Devices = append(p.Devices, d)
		}
		plan, err := Choose(p)
		require.NoError(t, err)
		return plan
	}
	parallel, turns := plan(true, "cpu:0", "cpu:0"), plan(false, "cpu:0", "cpu:0")
	assert.Equal(t, plan(true, "a", "b").StepSeconds, parallel.StepSeconds)
	assert.Equal(t, plan(true, "a", "b").Bubble, parallel.Bubble)
	assert.Positive(t, parallel.Bubble, "other stages do not fill it")
	assert.InDelta(t, turns.Stages[0].Seconds/4, parallel.Stages[0].Seconds, 1e-9)
	assert.Less(t, 2*parallel.StepSeconds, turns.StepSeconds)
}

// Devices that compute on the host's cores are no faster together than these: half of the cores each is enough for two,
// but all of them for each are not.
func TestDevicesOnTheHostsCores(t *testing.T) {
	seconds := func(first, second float64) float64 {
		us := model(6)
		p := Problem{Units: us, Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 640}
		for i, cores := range []float64{first, second} {
			d := device([]string{"cpu:0", "webgpu:0"}[i], 1, us)
			d.Cores = cores
			p.Devices = append(p.Devices, d)
		}
		plan, err := Choose(p)
		require.NoError(t, err)
		work := 0.0
		for i, s := range plan.Stages {
			work += p.Devices[plan.Devices[i]].Cores * (4*(s.Forward+s.Backward+s.Transfer) + s.Update)
		}
		assert.GreaterOrEqual(t, plan.StepSeconds, work)
		return plan.StepSeconds
	}
	assert.Equal(t, seconds(0, 0), seconds(0.5, 0.5))
	assert.Greater(t, seconds(1, 1), 1.2*seconds(0, 0))
	assert.Equal(t, seconds(0, 0), seconds(1, 0), "a GPU has processors of its own")
}

// Replicas that cross, each with its first stage on the device of the other's second, take turns as those on one device
// do.
func TestReplicasOnADeviceTakeTurns(t *testing.T) {
	plan := func(lines int, names ...string) Plan {
		us := model(6)
		p := Problem{Units: us, Schedule: generate(t, "1f1b", len(names), 1, 4), Replicas: 2, Tokens: 640}
		for _, name := range names {
			d := device(name, 1, us)
			d.Ranks = lines
			p.Devices = append(p.Devices, d)
		}
		plan, err := Choose(p)
		require.NoError(t, err)
		return plan
	}
	alone, both := plan(0, "a"), plan(2, "a")
	assert.InDelta(t, 2*alone.StepSeconds, both.StepSeconds, 1e-9)
	assert.InDelta(t, alone.TokensPerSec/2, both.TokensPerSec, 1e-9)
	assert.Zero(t, both.Bubble)
	crossed, same := plan(2, "a and b", "b and a"), plan(4, "a", "a")
	assert.Equal(t, same.Cut, crossed.Cut)
	busiest := max(crossed.Stages[0].Forward+crossed.Stages[0].Backward, crossed.Stages[1].Forward+crossed.Stages[1].Backward)
	assert.InDelta(t, 2*4*busiest, crossed.StepSeconds, 1e-9)
	assert.InDelta(t, 2*busiest, max(crossed.Stages[0].Seconds, crossed.Stages[1].Seconds), 1e-9)
	assert.InDelta(t, both.StepSeconds, same.StepSeconds, 1e-9)
}

func TestTransfersAndUpdatesAreInTheStep(t *testing.T) {
	us := model(2)
	problem := Problem{Units: us, Devices: devices(us, 1), Schedule: generate(t, "1f1b", 1, 1, 4), Tokens: 1}
	problem.Devices[0].Times[1].Update = 10
	p, err := Choose(problem)
	require.NoError(t, err)
	assert.InDelta(t, 4*9+10, p.StepSeconds, 1e-9)

	problem = Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "2bw", 2, 1, 4), Tokens: 1, Cut: []int{2}}
	for i := range problem.Devices {
		problem.Devices[i].Link = Link{Latency: 0.25}
	}
	p, err = Choose(problem)
	require.NoError(t, err)
	assert.InDelta(t, 4*(6+0.5), p.StepSeconds, 1e-9, "the second stage has a layer and the head")
	us[3].Shared = 100
	for i := range problem.Devices {
		problem.Devices[i].Link = Link{Bandwidth: 1}
		problem.Devices[i].Times[2] = Time{}
	}
	p, err = Choose(problem)
	require.NoError(t, err)
	assert.InDelta(t, 4*(3+100), p.StepSeconds, 1e-9, "the exchange of 200 bytes hides behind transfers of 50, twice a microbatch")
	problem.Schedule = generate(t, "gpipe", 2, 1, 4)
	q, err := Choose(problem)
	require.NoError(t, err)
	problem.Units = append([]Unit(nil), us...)
	problem.Units[3].Shared = 0
	without, err := Choose(problem)
	require.NoError(t, err)
	assert.InDelta(t, without.StepSeconds+200, q.StepSeconds, 1e-9)
}

func TestScheduleOfTheUsers(t *testing.T) {
	us := model(2)
	one, err := schedule.Generate("1f1b", schedule.Options{Stages: 2, Microbatches: 4}) // as a file may hold it
	require.NoError(t, err)
	g, err := schedule.Repeat(one, schedule.PatternBatches)
	require.NoError(t, err)
	repeated, err := g.Schedule()
	require.NoError(t, err)
	want, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: generate(t, "1f1b", 2, 1, 4), Tokens: 1})
	require.NoError(t, err)
	got, err := Choose(Problem{Units: us, Devices: devices(us, 1, 1), Schedule: repeated, Tokens: 1})
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestCompare(t *testing.T) {
	assert.Equal(t, "2 s a step measured, 1.5 s predicted (-25 %)", Plan{StepSeconds: 1.5}.Compare(2))
	assert.Equal(t, "no prediction to compare with", Plan{}.Compare(2))
}
