package stage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// late gives a schedule a delay of all microbatches: the update of batch t stands where batch t + 2 begins.
func late(s *schedule.Schedule) *schedule.Schedule {
	s.Delay, s.Stale = 1, s.Microbatches
	for i, actions := range s.Actions {
		var out []schedule.Action
		due := 0
		for _, a := range actions {
			if a.Kind == schedule.Update {
				continue
			}
			if a.Batch == due+2 {
				out = append(out, schedule.Action{Kind: schedule.Update, Batch: due})
				due++
			}
			out = append(out, a)
		}
		for ; due < s.Batches; due++ {
			out = append(out, schedule.Action{Kind: schedule.Update, Batch: due})
		}
		s.Actions[i] = out
	}
	return s
}

// split makes an I and a W of every B, with the W after what follows the I where that is a forward.
func split(s *schedule.Schedule) *schedule.Schedule {
	for i, actions := range s.Actions {
		var out []schedule.Action
		for _, a := range actions {
			if a.Kind == schedule.Backward {
				a.Kind = schedule.InputGrad
				out = append(out, a)
				a.Kind = schedule.WeightGrad
			}
			if n := len(out); n > 0 && out[n-1].Kind == schedule.WeightGrad && a.Kind == schedule.Forward {
				out = slices.Insert(out, n-1, a)
				continue
			}
			out = append(out, a)
		}
		s.Actions[i] = out
	}
	return s
}

type variant struct {
	name    string
	options schedule.Options
	change  []func(*schedule.Schedule) *schedule.Schedule
}

func (v variant) String() string {
	s := fmt.Sprintf("%s p=%d m=%d k=%d q=%d v=%d", v.name, v.options.Stages, v.options.Microbatches, v.options.Depth, v.options.Stale,
		v.options.Chunks)
	for range v.change {
		s += "+"
	}
	return s
}

// variants are all schedules that a pipeline trains with, on up to five stages.
func variants() (vs []variant) {
	type changes = []func(*schedule.Schedule) *schedule.Schedule
	for _, f := range schedule.Trainable() {
		chunks := []int{f.Chunks}
		if f.ManyChunks {
			chunks = append(chunks, f.Chunks+1)
		}
		for p := 1; p <= 5; p++ {
			for _, m := range []int{1, p, p + 1, 2 * p, 2*p + 1} {
				for _, v := range chunks {
					o := schedule.Options{Stages: p, Microbatches: m, Chunks: v}
					if _, err := schedule.New(f.Name, o); err != nil {
						continue // not on so many stages
					}
					vs = append(vs, variant{f.Name, o, nil})
					switch {
					case f.Delay == 1:
						for q := max(1, p-1); q <= m; q++ {
							o.Stale = q
							vs = append(vs, variant{f.Name, o, nil}, variant{f.Name, o, changes{split}})
						}
					case m >= p:
						vs = append(vs, variant{f.Name, o, changes{late}})
					}
					for k := 1; f.Deep && p > 1 && k <= m-p; k++ {
						o.Depth, o.Stale = k, 0
						vs = append(vs, variant{f.Name, o, nil}, variant{f.Name, o, changes{split}})
						if f.Delay == 1 {
							o.Stale = m
							vs = append(vs, variant{f.Name, o, nil})
						}
					}
				}
			}
		}
	}
	return vs
}

// check runs all machines of a pipeline against each other, with messages and devices in random order. They must reach
// their end, every program must read the data of its own batch and microbatch, and the weights must be those of
// training without a pipeline.
func check(t *testing.T, m model, s *schedule.Schedule, limit int, random *rand.Rand, name string) {
	t.Helper()
	p, err := newPipeline(m, s, limit, random)
	require.NoError(t, err, name)
	require.NoError(t, p.run(), name)
	versions, losses := m.reference(limit, s.Delay, s.Stale)
	for batch, loss := range losses {
		require.Equal(t, loss, p.losses[batch], "%s: loss of batch %d", name, batch)
	}
	for _, rk := range p.ranks {
		roles := rk.machine.Roles()
		for _, param := range rk.held() {
			require.Equal(t, versions[limit][param], rk.buffers[roles.Older][param].symbol, "%s: rank %d", name, rk.number)
			require.Equal(t, versions[limit+s.Delay][param], rk.buffers[roles.Newest][param].symbol, "%s: rank %d", name, rk.number)
		}
	}
}

// TestPipelinesCompute runs each schedule with tied and untied parameters, one of them with one replica and the other
// with two, or one of these in the core of the tests.
func TestPipelinesCompute(t *testing.T) {
	ran, all := 0, 0
	for i, v := range variants() {
		for n, run := range [][]int{{0, 3}, {1, 2}}[i%2] {
			if all++; !tier.All() && n != i/2%2 {
				continue
			}
			ran++
			seed := uint64(4*i + run)
			random := rand.New(rand.NewPCG(seed, 0))
			m := model{units: 16, microbatches: v.options.Microbatches, replicas: 1 + run/2, tied: run%2 == 1}
			limit := 1 + random.IntN(5)
			v.options.Batches = limit + random.IntN(3)
			s, err := schedule.Generate(v.name, v.options)
			require.NoError(t, err)
			for _, change := range v.change {
				s = change(s)
			}
			check(t, m, s, limit, random, fmt.Sprintf("%v seed %d", v, seed))
		}
	}
	tier.Count(t, ran, all)
}

// TestAnyPipelineComputes does so with random schedules.
func TestAnyPipelineComputes(t *testing.T) {
	valid := 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		o := schedule.Options{Stages: 1 + random.IntN(4), Chunks: 1 + random.IntN(3), Batches: 4}
		o.Microbatches = o.Stages + random.IntN(3)
		s := randomSchedule(o, random.IntN(2), random)
		if _, err := schedule.Validate(s); err != nil {
			continue // its updates wait for each other
		}
		valid++
		m := model{units: 12, microbatches: o.Microbatches, replicas: 1 + random.IntN(2), tied: random.IntN(2) == 0}
		check(t, m, s, 1+random.IntN(4), random, fmt.Sprintf("seed %d: %v", seed, s.Actions))
	}
	assert.Greater(t, valid, 100)
}

// TestEvaluationsCompute does so with forwards only: the weights stay what they are.
func TestEvaluationsCompute(t *testing.T) {
	for p := 1; p <= 4; p++ {
		for chunks := 1; chunks <= 3; chunks++ {
			random := rand.New(rand.NewPCG(uint64(p), uint64(chunks)))
			m := model{units: 12, microbatches: 5, replicas: 1, tied: true}
			s, err := schedule.Generate("eval", schedule.Options{Stages: p, Microbatches: 5, Chunks: chunks, Batches: 4})
			require.NoError(t, err)
			pipe, err := newPipeline(m, s, 3, random)
			require.NoError(t, err)
			before := pipe.ranks[0].machine.Roles()
			require.NoError(t, pipe.run())
			assert.Equal(t, before, pipe.ranks[0].machine.Roles())
			for batch := range 3 {
				var loss symbol
				for i := range m.microbatches {
					id := batchID{0, batch, i}
					_, out := m.forward(0, m.units, m.tokens(id), func(param int) symbol { return apply("initial", param) })
					loss = accumulate(i == 0, loss, m.loss(out, id))
				}
				assert.Equal(t, loss, pipe.losses[batch])
			}
		}
	}
}

// An endless action list is read only as far as the batches that are done need it.
func TestActionsAreReadLazily(t *testing.T) {
	read, stopped := 0, false
	m, err := New(Config{Pipeline: Pipeline{Stages: 1, Chunks: 1, Microbatches: 1}, Delay: 1, Stale: 1, Slots: 1, QueueDepth: 1,
		Roles: Roles{0, 1, 2}, Actions: func(yield func(schedule.Action) bool) {
			defer func() { stopped = true }()
			for batch := 0; ; batch++ {
				for _, a := range actions([]string{"F0", "B0", "U0"}) {
					a.Batch = batch
					read++
					if !yield(a) {
						return
					}
				}
			}
		}})
	require.NoError(t, err)
	finished := 0
	for batch := 0; !m.Done(); batch++ {
		if batch < 100 {
			m.Allow(batch)
		} else {
			m.Limit(100)
		}
		for effects := m.Next(); len(effects) > 0; effects = m.Next() {
			for _, e := range effects {
				if e.Kind == Run {
					require.NoError(t, m.Finished(e.Action))
					finished++
				}
			}
		}
		assert.LessOrEqual(t, read, finished+8)
	}
	assert.Equal(t, 300, finished)
	assert.True(t, stopped)
	assert.LessOrEqual(t, read, 305, "up to where batch 101 begins, and one action more")
}
