package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// every runs a test on schedules of all generators, with up to 8 stages, or 4 in a short run.
func every(t *testing.T, batches int, test func(t *testing.T, s *Schedule, o Options)) {
	names, _ := Names()
	most := 8
	if testing.Short() {
		most = 4
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			tried := 0
			for p := 1; p <= most; p++ {
				for _, m := range []int{1, 3, 4, 8} {
					for _, v := range []int{1, 2, 3} {
						o := Options{Stages: p, Microbatches: m, Chunks: v, Batches: batches}
						if name == "pipedream" {
							o.Batches = m * batches
							o.Microbatches = 1
						}
						s, err := Generate(name, o)
						if err != nil {
							continue
						}
						tried++
						test(t, s, o)
					}
				}
			}
			require.Greater(t, tried, 10)
		})
	}
}

var links = []Links{{}, {Tied: true}, {Tied: true, Copied: true}, {Replica: true}}

func TestEveryScheduleIsSound(t *testing.T) {
	every(t, 3, func(t *testing.T, s *Schedule, o Options) {
		before, err := Validate(s)
		require.NoError(t, err, "%+v", o)
		require.Empty(t, think(s).why, "%+v", o)
		for _, l := range links {
			c, err := Communicate(s, l)
			if s.Delay < 0 && l != (Links{}) {
				require.ErrorContains(t, err, "copies of parameters cannot be kept equal")
				continue
			}
			require.NoError(t, err)
			after, err := Validate(c)
			require.NoError(t, err, "%+v %+v", o, l)
			require.Empty(t, think(c).why, "%+v %+v", o, l)
			assert.Equal(t, before, after)
			for stage, line := range c.Lines {
				assert.Equal(t, computation(s.Lines[stage]), computation(line), "computation keeps its order")
			}
		}
	})
}

// computation is what of a line works on microbatches.
func computation(line []Action) (out []Action) {
	for _, a := range line {
		if a.Kind < Update {
			out = append(out, a)
		}
	}
	return out
}

// The generators' own orders need no receive earlier than right before its use: nothing is kept that is not needed.
func TestReceivesStandBeforeTheirUse(t *testing.T) {
	every(t, 2, func(t *testing.T, s *Schedule, o Options) {
		c, err := Communicate(s, Links{})
		require.NoError(t, err)
		for _, line := range c.Lines {
			for i, a := range line {
				if a.Kind == RecvForward || a.Kind == RecvBackward {
					next := line[i+1]
					assert.Equal(t, [3]int{a.Microbatch, a.Batch, a.Chunk}, [3]int{next.Microbatch, next.Batch, next.Chunk}, "%+v: %v %v", o, a, next)
					assert.Contains(t, []Kind{Forward, Evaluate, Backward, InputGrad}, next.Kind)
				}
			}
		}
	})
}

// What is known of the schedules in closed form: bubbles for equal costs, microbatches in flight for all.
func TestClosedForms(t *testing.T) {
	costs := []Cost{Even(1, 2, 0), Even(1, 1, 0), Even(2, 1, 0.25), Even(1, 2, 4), {Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1}}
	every(t, 6, func(t *testing.T, s *Schedule, o Options) {
		report, err := Validate(s)
		require.NoError(t, err)
		told, err := Communicate(s, Links{})
		require.NoError(t, err)
		for _, c := range costs {
			form, known := Closed(s.Name, o, c)
			if !known {
				assert.Equal(t, "zb-h1", s.Name)
				assert.Less(t, o.Microbatches, o.Stages)
				continue
			}
			for stage, line := range report.Lines {
				assert.Equal(t, form.InFlight[stage], line.InFlight, "%+v stage %d", o, stage)
			}
			if s.Name == "eval" && o.Microbatches%o.Stages != 0 && o.Chunks > 1 {
				continue // groups that are not full leave gaps
			}
			for _, s := range []*Schedule{s, told} {
				r, err := Simulate(s, Costs{Parts: []Cost{c}})
				require.NoError(t, err)
				assert.InDelta(t, form.Bubble, r.Bubble, 1e-9, "%+v %+v", o, c)
				if r.Steady != nil {
					assert.InDelta(t, form.Steady, r.Steady.Bubble, 1e-9, "%+v %+v", o, c)
				}
			}
		}
	})
}

func TestZeroBubbleH1IsAThirdOf1F1B(t *testing.T) {
	c := Cost{Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1}
	for p := 2; p <= 8; p++ {
		o := Options{Stages: p, Microbatches: 3 * p}
		var idle []float64
		for _, name := range []string{"1f1b", "zb-h1"} {
			s, err := Generate(name, o)
			require.NoError(t, err)
			r, err := Simulate(s, Costs{Parts: []Cost{c}})
			require.NoError(t, err)
			idle = append(idle, r.Stages[0].Idle)
		}
		assert.InDelta(t, idle[0]/3, idle[1], 1e-9)
	}
}

// In 2BW every gradient is one update old, whatever the depth, with two versions of the weights and three buffers; in PipeDream as
// many as there are stages to come.
func TestStaleness(t *testing.T) {
	for p := 1; p <= 8; p++ {
		s, err := Generate("2bw", Options{Stages: p, Microbatches: p + 3, Batches: 7})
		require.NoError(t, err)
		report, err := Validate(s)
		require.NoError(t, err)
		for stage, l := range report.Lines {
			assert.Equal(t, LineReport{InFlight: p - stage, Versions: 2, Accumulators: 2, Buffers: 3, Staleness: [2]int{1, 1}}, l)
		}
		for stage, line := range s.Lines {
			assert.Equal(t, map[int]bool{1: true}, ages(line, 1), "%d stages, stage %d", p, stage) // u_{−1} = 0 is not in the line
		}
		s, err = Generate("pipedream", Options{Stages: p, Microbatches: 1, Batches: 20})
		require.NoError(t, err)
		report, err = Validate(s)
		require.NoError(t, err)
		for stage, l := range report.Lines {
			assert.Equal(t, [2]int{0, p - 1 - stage}, l.Staleness)
			assert.Equal(t, p-stage, l.Versions)
			assert.Equal(t, map[int]bool{p - 1 - stage: true}, ages(s.Lines[stage], p))
		}
	}
}

// ages are, of all microbatches from a batch on, how many updates stand between their forward and their batch's own.
func ages(line []Action, from int) map[int]bool {
	read, updates, out := map[Action]int{}, 0, map[int]bool{}
	for _, a := range line {
		switch {
		case a.Kind == Forward && a.Batch >= from:
			read[a] = updates
		case a.Kind == Update:
			for f, version := range read {
				if f.Batch == a.Batch {
					out[updates-version] = true
				}
			}
			updates++
		}
	}
	return out
}

// Updates stand before the first forward that needs them, and as late as that.
func TestUpdatesStandAtTheirDeadline(t *testing.T) {
	every(t, 5, func(t *testing.T, s *Schedule, o Options) {
		if s.Name == "eval" || s.Delay < 0 {
			return
		}
		for _, line := range s.Lines {
			for i, a := range line {
				if a.Kind == Update && a.Batch+1+s.Delay < s.Batches {
					assert.Equal(t, Action{Kind: Forward, Batch: a.Batch + 1 + s.Delay}, line[i+1])
				}
			}
		}
	})
}

// Whatever the costs: no schedule is faster than its slowest stage, or than one microbatch through all parts; what a stage does
// fills exactly what it costs; devices do one thing at a time.
func TestSimulatedTimesHaveTheirBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	every(t, 3, func(t *testing.T, s *Schedule, o Options) {
		c := randomCosts(rng, s)
		plain, err := Simulate(s, c)
		require.NoError(t, err)
		told, err := Communicate(s, Links{Tied: s.Delay >= 0})
		require.NoError(t, err)
		with, err := Simulate(told, c)
		require.NoError(t, err)
		once := 0.0
		for q := range s.Parts() {
			p := c.Parts[q]
			once += p.Forward
			if s.Name != "eval" {
				once += min(p.Backward, p.InputGrad)
			}
			if q+1 < s.Parts() && s.Stages > 1 {
				once += p.Transfer
			}
		}
		for _, r := range []*Result{plain, with} {
			assert.GreaterOrEqual(t, r.Makespan, once-1e-9)
			for stage, line := range s.Lines {
				work := 0.0
				for _, a := range line {
					work += costOf(s, c, stage, a)
				}
				assert.InDelta(t, work, r.Stages[stage].Busy, 1e-9)
				assert.GreaterOrEqual(t, r.Makespan, work-1e-9)
				assert.InDelta(t, r.Makespan, r.Stages[stage].Busy+r.Stages[stage].Idle, 1e-9)
			}
			end := make([]float64, s.Stages)
			for _, e := range r.Events {
				assert.GreaterOrEqual(t, e.Start, end[e.Stage], "%v on stage %d", e.Action, e.Stage)
				end[e.Stage] = e.End
			}
			if r.Steady != nil {
				assert.GreaterOrEqual(t, r.Steady.Bubble, -1e-9)
			}
		}
	})
}

func randomCosts(rng *rand.Rand, s *Schedule) (c Costs) {
	c.Exchange = rng.Float64()
	for range s.Parts() {
		f := func() float64 { return rng.Float64() * float64(rng.IntN(4)) }
		c.Parts = append(c.Parts, Cost{f(), f(), f(), f(), f(), f(), f()})
	}
	return c
}

func costOf(s *Schedule, c Costs, stage int, a Action) float64 {
	part := c.Parts[a.Chunk*s.Stages+stage]
	switch a.Kind.String() {
	case "F", "E":
		return part.Forward
	case "B":
		return part.Backward
	case "I":
		return part.InputGrad
	case "W":
		return part.WeightGrad
	}
	sum := 0.0
	for q := stage; q < s.Parts(); q += s.Stages {
		sum += c.Parts[q].Update
	}
	return sum
}

// With updates that take no time the makespan is the longest path of the graph of what waits for what.
func TestMakespanIsTheLongestPath(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	every(t, 3, func(t *testing.T, s *Schedule, o Options) {
		c := randomCosts(rng, s)
		transfer := rng.Float64()
		for q := range c.Parts {
			c.Parts[q].Update, c.Parts[q].Transfer = 0, transfer
		}
		r, err := Simulate(s, c)
		require.NoError(t, err)
		want := withoutVotes(s).path(func(stage int, a Action) float64 { return costOf(s, c, stage, a) }, transfer)
		assert.InDelta(t, want, r.Makespan, 1e-9, "%+v", o)
	})
}

// withoutVotes is the graph of a schedule of computation whose updates need their own line only.
func withoutVotes(s *Schedule) *opinion {
	own := *s
	own.Delay = -1
	o := think(&own)
	if !o.sound() {
		panic(fmt.Sprint(s.Name, ": ", o.why))
	}
	return o
}
