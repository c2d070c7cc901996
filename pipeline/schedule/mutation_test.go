package schedule

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mutate changes a schedule in one place.
func mutate(rng *rand.Rand, s *Schedule) *Schedule {
	out := *s
	out.Lines = nil
	for _, line := range s.Lines {
		out.Lines = append(out.Lines, slices.Clone(line))
	}
	line := &out.Lines[rng.IntN(s.Stages)]
	if len(*line) == 0 {
		return &out
	}
	i, j := rng.IntN(len(*line)), rng.IntN(len(*line))
	switch rng.IntN(7) {
	case 0: // drop
		*line = slices.Delete(*line, i, i+1)
	case 1: // twice
		*line = slices.Insert(*line, j, (*line)[i])
	case 2: // swap
		(*line)[i], (*line)[j] = (*line)[j], (*line)[i]
	case 3: // swap neighbours
		if j = i + 1; j < len(*line) {
			(*line)[i], (*line)[j] = (*line)[j], (*line)[i]
		}
	case 4: // move a little
		a := (*line)[i]
		*line = slices.Delete(*line, i, i+1)
		*line = slices.Insert(*line, min(len(*line), max(0, i+rng.IntN(7)-3)), a)
	case 5: // another action
		a := &(*line)[i]
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
	case 6: // another line
		other := &out.Lines[rng.IntN(s.Stages)]
		a := (*line)[i]
		*line = slices.Delete(*line, i, i+1)
		*other = slices.Insert(*other, rng.IntN(len(*other)+1), a)
	}
	return &out
}

// A schedule that is changed in up to three places is refused, unless a second opinion finds it sound, too.
func TestMutatedSchedules(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	names, _ := Names()
	tries := 800
	if testing.Short() {
		tries = 100
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			sound, broken, deadlocked := 0, 0, 0
			for range tries {
				p := 1 + rng.IntN(4)
				o := Options{Stages: p, Microbatches: p * (1 + rng.IntN(2)), Batches: 1 + rng.IntN(3)}
				if name == "pipedream" {
					o.Microbatches = 1
				}
				s, err := Generate(name, o)
				require.NoError(t, err)
				if rng.IntN(2) == 0 {
					s, err = Communicate(s, Links{Tied: s.Delay >= 0 && rng.IntN(2) == 0, Copied: s.Delay >= 0 && rng.IntN(3) == 0})
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
					require.ErrorContains(t, err, "schedule "+name+": ")
					if strings.Contains(err.Error(), "deadlock") {
						deadlocked++
					}
					continue
				case s.Links == nil:
					s, err = Communicate(s, Links{})
					require.NoError(t, err)
					_, err = Validate(s)
					require.NoError(t, err)
					require.Empty(t, think(s).why)
				}
				sound++
			}
			assert.Greater(t, sound, tries/27)
			assert.Greater(t, broken, tries*3/8)
			if !testing.Short() { // rare
				assert.Positive(t, deadlocked)
			}
		})
	}
}

// However a sound schedule orders its work, Communicate finds places for its messages.
func TestShuffledSchedulesCommunicate(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	early := 0
	for range 80 {
		p := 2 + rng.IntN(3)
		name := []string{"gpipe", "1f1b", "2bw", "interleaved", "zb-h1"}[rng.IntN(5)]
		s, err := Generate(name, Options{Stages: p, Microbatches: 2 * p, Batches: 2})
		require.NoError(t, err)
		for range 60 {
			m := mutate(rng, s)
			if _, err := Validate(m); err == nil {
				s = m
			}
		}
		c, err := Communicate(s, Links{Tied: true})
		require.NoError(t, err, "%v", s)
		_, err = Validate(c)
		require.NoError(t, err, "%v\n%v", s, c)
		require.Empty(t, think(c).why)
		for _, line := range c.Lines {
			for i, a := range line {
				if (a.Kind == RecvForward || a.Kind == RecvBackward) && line[i+1].Kind > Update {
					early++
				}
			}
		}
	}
	assert.Greater(t, early, 50, "receives before they are needed")
}
