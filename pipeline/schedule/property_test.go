package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// forEach runs a test on schedules of all families, with up to 8 stages, in the core of the tests up to 3 of fewer
// sizes. With a delay it runs them with few, some and all microbatches stale, and where there may be more in flight,
// with several depths.
func forEach(t *testing.T, batches int, test func(t *testing.T, s *Schedule, o Options)) {
	type size struct{ stages, microbatches int }
	var sizes []size
	for p := 1; p <= 8; p++ {
		for _, m := range []int{1, 3, 4, 8} {
			sizes = append(sizes, size{p, m})
		}
	}
	sizes = tier.Some(t, sizes, func(_ int, s size) bool { return s.stages <= 3 && (s.microbatches == 3 || s.microbatches == 8) })
	for _, f := range Families() {
		t.Run(f.Name, func(t *testing.T) {
			tried := 0
			for _, size := range sizes {
				p, m := size.stages, size.microbatches
				for _, o := range []Options{{Chunks: 1}, {Chunks: 2}, {Chunks: 3}, {Chunks: 1, Stale: p}, {Chunks: 1, Stale: m/2 + 1},
					{Chunks: 1, Stale: m}, {Chunks: 1, Depth: 1}, {Chunks: 1, Depth: 2, Stale: m}, {Chunks: 1, Depth: 4}} {
					o.Stages, o.Microbatches, o.Batches = p, m, batches
					if f.Example(Options{}).Microbatches == 1 {
						o.Batches, o.Microbatches = m*batches, 1
					}
					s, err := Generate(f.Name, o)
					if err != nil {
						continue
					}
					tried++
					test(t, s, o)
				}
			}
			require.Greater(t, tried, len(sizes)/4)
		})
	}
}

var copies = []Copies{{}, {Tied: true}, {Tied: true, Copied: true}, {Replica: true}}

func TestEveryScheduleIsSound(t *testing.T) {
	forEach(t, 3, func(t *testing.T, s *Schedule, o Options) {
		before, err := Validate(s)
		require.NoError(t, err, "%+v", o)
		require.Empty(t, think(s).why, "%+v", o)
		for _, l := range copies {
			c, err := Communicate(s, l)
			if s.Delay < 0 && l != (Copies{}) {
				require.ErrorContains(t, err, "which would make copies differ")
				continue
			}
			require.NoError(t, err)
			after, err := Validate(c)
			require.NoError(t, err, "%+v %+v", o, l)
			require.Empty(t, think(c).why, "%+v %+v", o, l)
			assert.Equal(t, before, after)
			for stage, actions := range c.Actions {
				assert.Equal(t, computation(s.Actions[stage]), computation(actions), "computation keeps its order")
			}
		}
	})
}

// computation filters the actions that work on microbatches.
func computation(actions []Action) (out []Action) {
	for _, a := range actions {
		if a.Kind < Update {
			out = append(out, a)
		}
	}
	return out
}

// In the schedules of the table every receive stands directly before its use, so no message is held longer than needed.
// With a depth a stage may hold as many messages more as the stage before has extra microbatches in flight.
func TestReceivesStandBeforeTheirUse(t *testing.T) {
	forEach(t, 2, func(t *testing.T, s *Schedule, o Options) {
		c, err := Communicate(s, Copies{})
		require.NoError(t, err)
		for stage, actions := range c.Actions {
			if o.Depth > 0 {
				assert.LessOrEqual(t, mostHeld(actions), 1+o.extra(max(0, stage-1))-o.extra(stage), "%+v stage %d", o, stage)
				continue
			}
			for i, a := range actions {
				if a.Kind == RecvForward || a.Kind == RecvBackward {
					next := actions[i+1]
					assert.Equal(t, [3]int{a.Microbatch, a.Batch, a.Chunk}, [3]int{next.Microbatch, next.Batch, next.Chunk}, "%+v: %v %v",
						o, a, next)
					assert.Contains(t, []Kind{Forward, Evaluate, Backward, InputGrad}, next.Kind)
				}
			}
		}
	})
}

// mostHeld is the most activations that are received and not yet used.
func mostHeld(actions []Action) (most int) {
	held := 0
	for _, a := range actions {
		switch a.Kind {
		case RecvForward:
			held++
			most = max(most, held)
		case Forward:
			held--
		}
	}
	return most
}

// Closed forms agree with the simulation: bubbles for equal costs, microbatches in flight for all.
func TestClosedForms(t *testing.T) {
	costs := []Cost{Even(1, 2, 0), Even(1, 1, 0), Even(2, 1, 0.25), Even(1, 2, 4), {Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1}}
	forEach(t, 6, func(t *testing.T, s *Schedule, o Options) {
		report, err := Validate(s)
		require.NoError(t, err)
		communicating, err := Communicate(s, Copies{})
		require.NoError(t, err)
		for _, c := range costs {
			form, known := Closed(s.Name, o, c)
			if !known {
				if f, _ := Find(s.Name); f.closed != nil {
					assert.Less(t, o.Microbatches, o.Stages, "%s has a closed form from one microbatch per stage on", s.Name)
				}
				continue
			}
			for stage, of := range report.Stages {
				assert.Equal(t, form.InFlight[stage], of.InFlight, "%+v stage %d", o, stage)
			}
			if s.Name == "eval" && o.Microbatches%o.Stages != 0 && o.Chunks > 1 {
				continue // groups that are not full leave gaps
			}
			for _, s := range []*Schedule{s, communicating} {
				r, err := Simulate(s, Costs{VirtualStages: []Cost{c}})
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
			r, err := Simulate(s, Costs{VirtualStages: []Cost{c}})
			require.NoError(t, err)
			idle = append(idle, r.Stages[0].Idle)
		}
		assert.InDelta(t, idle[0]/3, idle[1], 1e-9)
	}
}

// In 2BW the gradients of the stale microbatches are one update old and the others are current, whatever the depth and
// however many are stale, with two versions of the weights and three buffers. In PipeDream they are as old as there are
// stages to come.
func TestStaleness(t *testing.T) {
	for p := 1; p <= 8; p++ {
		m := p + 3
		for q := max(1, p-1); q <= m; q++ {
			s, err := Generate("2bw", Options{Stages: p, Microbatches: m, Stale: q, Batches: 7})
			require.NoError(t, err)
			assert.InDelta(t, float64(q)/float64(m), s.MeanStaleness(), 1e-12)
			report, err := Validate(s)
			require.NoError(t, err)
			least := 0
			if q == m {
				least = 1
			}
			for stage, l := range report.Stages {
				accumulators := 2
				if q == p-1-stage {
					accumulators = 1 // the update comes before the next batch's first backward
				}
				assert.Equal(t, StageReport{InFlight: p - stage, Versions: 2, Accumulators: accumulators, Buffers: 3,
					Staleness: [2]int{least, 1}}, l, "%d stages, %d stale, stage %d", p, q, stage)
			}
			for stage, actions := range s.Actions {
				for i := range m {
					age := 0
					if i < q {
						age = 1
					}
					// From batch 1 on: u_{−1} = 0 is not an action.
					assert.Equal(t, map[int]bool{age: true}, ages(actions, 1, i), "%d stages, stage %d", p, stage)
				}
			}
		}
		s, err := Generate("pipedream", Options{Stages: p, Microbatches: 1, Batches: 20})
		require.NoError(t, err)
		report, err := Validate(s)
		require.NoError(t, err)
		for stage, l := range report.Stages {
			assert.Equal(t, [2]int{0, p - 1 - stage}, l.Staleness)
			assert.Equal(t, p-stage, l.Versions)
			assert.Equal(t, map[int]bool{p - 1 - stage: true}, ages(s.Actions[stage], p, 0))
		}
	}
}

// Depth changes how many microbatches are in flight, and neither the weights that one reads nor the order of sums.
func TestDepth(t *testing.T) {
	for p := 2; p <= 8; p++ {
		for _, k := range []int{0, 1, 2, 3, 5, 8} {
			m := p + k + 2
			for q := p - 1 + k; q <= m; q++ {
				o := Options{Stages: p, Microbatches: m, Stale: q, Depth: k, Batches: 4}
				s, err := Generate("2bw", o)
				require.NoError(t, err)
				report, err := Validate(s)
				require.NoError(t, err)
				o.Depth = 0
				shallow, err := Generate("2bw", o)
				require.NoError(t, err)
				for stage, r := range report.Stages {
					share := float64(k*(p-1-stage)) / float64(p-1)
					assert.InDelta(t, float64(p-stage)+share, float64(r.InFlight), 0.5, "%d stages, depth %d, stage %d", p, k, stage)
					assert.Equal(t, [2]int{2, 3}, [2]int{r.Versions, r.Buffers})
					assert.Equal(t, backwards(shallow.Actions[stage]), backwards(s.Actions[stage]),
						"gradients are summed in the same order")
					for i := range m {
						assert.Equal(t, ages(shallow.Actions[stage], 1, i), ages(s.Actions[stage], 1, i), "microbatch %d", i)
					}
				}
				assert.Equal(t, p+k, report.Stages[0].InFlight)
				assert.Equal(t, 1, report.Stages[p-1].InFlight)
			}
			o := Options{Stages: p, Microbatches: m, Depth: k}
			s, err := Generate("1f1b", o)
			require.NoError(t, err)
			report, err := Validate(s)
			require.NoError(t, err)
			assert.Equal(t, p+k, report.Stages[0].InFlight)
		}
	}
}

func backwards(actions []Action) (out []Action) {
	for _, a := range actions {
		if a.Kind == Backward {
			out = append(out, a)
		}
	}
	return out
}

// ages are, of one microbatch of all batches from one on, how many updates stand between its forward and its batch's
// own.
func ages(actions []Action, from, microbatch int) map[int]bool {
	read, updates, out := map[Action]int{}, 0, map[int]bool{}
	for _, a := range actions {
		switch {
		case a.Kind == Forward && a.Batch >= from && a.Microbatch == microbatch:
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

// An update stands directly before the first forward that needs it.
func TestUpdatesStandAtTheirDeadline(t *testing.T) {
	forEach(t, 5, func(t *testing.T, s *Schedule, o Options) {
		if s.Name == "eval" || s.Delay < 0 {
			return
		}
		for _, actions := range s.Actions {
			for i, a := range actions {
				first := Action{Kind: Forward, Batch: a.Batch + 1 + s.Delay}
				if s.Delay == 1 && s.Stale < s.Microbatches {
					first = Action{Kind: Forward, Batch: a.Batch + 1, Microbatch: s.Stale}
				}
				if a.Kind == Update && first.Batch < s.Batches {
					assert.Equal(t, first, actions[i+1])
				}
			}
		}
	})
}

// At any costs, a schedule is no faster than its slowest stage, or than one microbatch through all virtual stages. A
// stage is busy for exactly the sum of its costs, and devices execute one action at a time.
func TestSimulatedTimesHaveTheirBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	forEach(t, 3, func(t *testing.T, s *Schedule, o Options) {
		c := randomCosts(rng, s)
		plain, err := Simulate(s, c)
		require.NoError(t, err)
		communicating, err := Communicate(s, Copies{Tied: s.Delay >= 0})
		require.NoError(t, err)
		with, err := Simulate(communicating, c)
		require.NoError(t, err)
		once := 0.0
		for q := range s.VirtualStages() {
			p := c.VirtualStages[q]
			once += p.Forward
			if s.Name != "eval" {
				once += min(p.Backward, p.InputGrad)
			}
			if q+1 < s.VirtualStages() && s.Stages > 1 {
				once += p.Transfer
			}
		}
		for _, r := range []*Result{plain, with} {
			assert.GreaterOrEqual(t, r.Makespan, once-1e-9)
			for stage, actions := range s.Actions {
				work := 0.0
				for _, a := range actions {
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
	for range s.VirtualStages() {
		f := func() float64 { return rng.Float64() * float64(rng.IntN(4)) }
		c.VirtualStages = append(c.VirtualStages, Cost{f(), f(), f(), f(), f(), f(), f()})
	}
	return c
}

func costOf(s *Schedule, c Costs, stage int, a Action) float64 {
	cost := c.VirtualStages[a.Chunk*s.Stages+stage]
	switch a.Kind.String() {
	case "F", "E":
		return cost.Forward
	case "B":
		return cost.Backward
	case "I":
		return cost.InputGrad
	case "W":
		return cost.WeightGrad
	}
	sum := 0.0
	for q := stage; q < s.VirtualStages(); q += s.Stages {
		sum += c.VirtualStages[q].Update
	}
	return sum
}

// With updates that take no time the makespan is the longest path of the dependency graph.
func TestMakespanIsTheLongestPath(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	forEach(t, 3, func(t *testing.T, s *Schedule, o Options) {
		c := randomCosts(rng, s)
		transfer := rng.Float64()
		for q := range c.VirtualStages {
			c.VirtualStages[q].Update, c.VirtualStages[q].Transfer = 0, transfer
		}
		r, err := Simulate(s, c)
		require.NoError(t, err)
		want := withoutExchange(s).path(func(stage int, a Action) float64 { return costOf(s, c, stage, a) }, transfer)
		assert.InDelta(t, want, r.Makespan, 1e-9, "%+v", o)
	})
}

// withoutExchange is the graph of a schedule of computation whose updates need only their own stage.
func withoutExchange(s *Schedule) *opinion {
	own := *s
	own.Delay = -1
	o := think(&own)
	if !o.sound() {
		panic(fmt.Sprint(s.Name, ": ", o.why))
	}
	return o
}
