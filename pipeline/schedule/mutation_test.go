package schedule

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mutate changes a schedule in one place.
func mutate(rng *rand.Rand, s *Schedule) *Schedule {
	out := *s
	out.Actions = nil
	for _, actions := range s.Actions {
		out.Actions = append(out.Actions, slices.Clone(actions))
	}
	actions := &out.Actions[rng.IntN(s.Stages)]
	if len(*actions) == 0 {
		return &out
	}
	i, j := rng.IntN(len(*actions)), rng.IntN(len(*actions))
	switch rng.IntN(7) {
	case 0: // drop
		*actions = slices.Delete(*actions, i, i+1)
	case 1: // twice
		*actions = slices.Insert(*actions, j, (*actions)[i])
	case 2: // swap
		(*actions)[i], (*actions)[j] = (*actions)[j], (*actions)[i]
	case 3: // swap neighbours
		if j = i + 1; j < len(*actions) {
			(*actions)[i], (*actions)[j] = (*actions)[j], (*actions)[i]
		}
	case 4: // move a little
		a := (*actions)[i]
		*actions = slices.Delete(*actions, i, i+1)
		*actions = slices.Insert(*actions, min(len(*actions), max(0, i+rng.IntN(7)-3)), a)
	case 5: // another action
		a := &(*actions)[i]
		switch rng.IntN(4) {
		case 0:
			a.Kind = Kind(rng.IntN(len(letters)))
		case 1:
			a.Microbatch = rng.IntN(s.Microbatches + 1)
		case 2:
			a.Batch = rng.IntN(s.Batches + 1)
		case 3:
			a.Chunk = rng.IntN(s.Chunks + 1)
		}
		if a.Kind.PerBatch() {
			a.Microbatch, a.Chunk = 0, 0
		}
	case 6: // another stage
		other := &out.Actions[rng.IntN(s.Stages)]
		a := (*actions)[i]
		*actions = slices.Delete(*actions, i, i+1)
		*other = slices.Insert(*other, rng.IntN(len(*other)+1), a)
	}
	return &out
}

// Validate rejects a schedule that was changed in up to three places, unless the second opinion finds it sound too.
func TestMutatedSchedules(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	tries := tier.Times(t, 800, 100)
	for _, f := range Families() {
		t.Run(f.Name, func(t *testing.T) {
			sound, broken, deadlocked := 0, 0, 0
			for range tries {
				p := 1 + rng.IntN(4)
				o := Options{Stages: p, Microbatches: p * (1 + rng.IntN(2)), Batches: 1 + rng.IntN(3)}
				if f.Example(Options{}).Microbatches == 1 {
					o.Microbatches = 1
				}
				if f.Deep && p > 1 {
					o.Depth = rng.IntN(o.Microbatches - p + 1)
				}
				s, err := Generate(f.Name, o)
				require.NoError(t, err)
				if rng.IntN(2) == 0 {
					s, err = Communicate(s, Copies{Tied: s.Delay >= 0 && rng.IntN(2) == 0, Copied: s.Delay >= 0 && rng.IntN(3) == 0})
					require.NoError(t, err)
				}
				for range 1 + rng.IntN(3) {
					s = mutate(rng, s)
				}
				_, err = Validate(s)
				opinion := think(s)
				require.Equal(t, opinion.sound(), err == nil, "%v\n%v\n%s", s, err, opinion.why)
				switch {
				case err != nil:
					broken++
					require.ErrorContains(t, err, "schedule "+f.Name+": ")
					if strings.Contains(err.Error(), "deadlock") {
						deadlocked++
					}
					continue
				case s.Copies == nil:
					s, err = Communicate(s, Copies{})
					require.NoError(t, err)
					_, err = Validate(s)
					require.NoError(t, err)
					require.Empty(t, think(s).why)
				}
				sound++
			}
			assert.Greater(t, sound, tries/27)
			assert.Greater(t, broken, tries*3/8)
			if tier.All() { // rare
				assert.Positive(t, deadlocked)
			}
		})
	}
}

// Communicate finds places for the messages of any sound schedule.
func TestShuffledSchedulesCommunicate(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	families, early := Trainable(), 0
	for range 80 {
		p := 2 + rng.IntN(3)
		f := families[rng.IntN(len(families))]
		s, err := Generate(f.Name, Options{Stages: p, Microbatches: 2 * p, Batches: 2})
		require.NoError(t, err)
		for range 60 {
			m := mutate(rng, s)
			if _, err := Validate(m); err == nil {
				s = m
			}
		}
		c, err := Communicate(s, Copies{Tied: true})
		require.NoError(t, err, "%v", s)
		_, err = Validate(c)
		require.NoError(t, err, "%v\n%v", s, c)
		require.Empty(t, think(c).why)
		for _, actions := range c.Actions {
			for i, a := range actions {
				if (a.Kind == RecvForward || a.Kind == RecvBackward) && actions[i+1].Kind > Update {
					early++
				}
			}
		}
	}
	assert.Greater(t, early, 50, "receives before they are needed")
}
