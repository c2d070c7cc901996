package schedule

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The schedules as their papers draw them.
func TestActionListsOfThePapers(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Options
		stage int
		want  string
	}{
		{"2bw", Options{Stages: 3, Microbatches: 3, Stale: 3, Batches: 3}, 0,
			"F0.0 F1.0 F2.0 B0.0 F0.1 B1.0 F1.1 B2.0 F2.1 B0.1 U0 F0.2 B1.1 F1.2 B2.1 F2.2 B0.2 B1.2 B2.2 U1 U2"},
		{"2bw", Options{Stages: 3, Microbatches: 3, Stale: 3, Batches: 2}, 2,
			"F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 U0 U1"},
		{"2bw", Options{Stages: 1, Microbatches: 1, Stale: 1, Batches: 3}, 0, "F0.0 B0.0 F0.1 B0.1 U0 F0.2 B0.2 U1 U2"},
		{"2bw", Options{Stages: 1, Microbatches: 1, Batches: 3}, 0, "F0.0 B0.0 U0 F0.1 B0.1 U1 F0.2 B0.2 U2"},
		{"2bw", Options{Stages: 3, Microbatches: 4, Batches: 2}, 0,
			"F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 F0.1 B2.0 F1.1 B3.0 U0 F2.1 B0.1 F3.1 B1.1 B2.1 B3.1 U1"},
		{"2bw", Options{Stages: 3, Microbatches: 4, Stale: 3, Batches: 2}, 0,
			"F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 F0.1 B2.0 F1.1 B3.0 F2.1 B0.1 U0 F3.1 B1.1 B2.1 B3.1 U1"},
		{"2bw", Options{Stages: 3, Microbatches: 5, Depth: 2, Batches: 2}, 0,
			"F0.0 F1.0 F2.0 F3.0 F4.0 B0.0 F0.1 B1.0 F1.1 B2.0 F2.1 B3.0 F3.1 B4.0 U0 F4.1 B0.1 B1.1 B2.1 B3.1 B4.1 U1"},
		{"2bw", Options{Stages: 3, Microbatches: 5, Depth: 2, Batches: 2}, 1,
			"F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 F4.0 B2.0 F0.1 B3.0 F1.1 B4.0 F2.1 B0.1 F3.1 B1.1 U0 F4.1 B2.1 B3.1 B4.1 U1"},
		{"2bw", Options{Stages: 3, Microbatches: 4, Depth: 1, Stale: 4, Batches: 3}, 1,
			"F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 F0.1 B3.0 F1.1 B0.1 F2.1 B1.1 F3.1 B2.1 U0 F0.2 B3.1 F1.2 B0.2 F2.2 B1.2 F3.2 B2.2 B3.2 U1 U2"},
		{"1f1b", Options{Stages: 3, Microbatches: 4, Depth: 1}, 0, "F0.0 F1.0 F2.0 F3.0 B0.0 B1.0 B2.0 B3.0 U0"},
		{"1f1b", Options{Stages: 3, Microbatches: 2, Batches: 1}, 0, "F0.0 F1.0 B0.0 B1.0 U0"},
		{"zb-h1", Options{Stages: 3, Microbatches: 4, Batches: 1}, 1, "F0.0 F1.0 I0.0 F2.0 I1.0 W0.0 F3.0 I2.0 W1.0 I3.0 W2.0 W3.0 U0"},
		{"pipedream", Options{Stages: 2, Microbatches: 1, Batches: 3}, 0, "F0.0 F0.1 B0.0 U0 F0.2 B0.1 U1 B0.2 U2"},
		{"interleaved", Options{Stages: 2, Microbatches: 2, Chunks: 2}, 1, "F0.0 F1.0 F0.0:1 B0.0:1 F1.0:1 B1.0:1 B0.0 B1.0 U0"},
	} {
		s, err := Generate(c.name, c.o)
		require.NoError(t, err)
		var text string
		for _, a := range s.Actions[c.stage] {
			text += " " + a.String()
		}
		assert.Equal(t, c.want, text[1:], "%s %+v stage %d", c.name, c.o, c.stage)
	}
}

func TestInvalidOptions(t *testing.T) {
	for want, c := range map[string]struct {
		name string
		o    Options
	}{
		`schedule "3bw": no such schedule, expected one of gpipe, 1f1b`:          {"3bw", Options{Stages: 1, Microbatches: 1}},
		"schedule 2bw: microbatches: found 3 on 4 stages, expected at least one": {"2bw", Options{Stages: 4, Microbatches: 3}},
		"schedule 2bw: stale microbatches: found 1 on 3 stages with 4 microbatches, expected 2 to 4": {"2bw",
			Options{Stages: 3, Microbatches: 4, Stale: 1}},
		"schedule 2bw: stale microbatches: found 5 on 3 stages with 4 microbatches, expected 2 to 4": {"2bw",
			Options{Stages: 3, Microbatches: 4, Stale: 5}},
		"schedule 2bw: stale microbatches: found 3 on 3 stages with 6 microbatches and depth 2, expected 4 to 6": {"2bw",
			Options{Stages: 3, Microbatches: 6, Stale: 3, Depth: 2}},
		"schedule 2bw: microbatches: found 4 on 3 stages, expected at least 5: one per stage and 2 more in flight": {"2bw",
			Options{Stages: 3, Microbatches: 4, Depth: 2}},
		"schedule 1f1b: depth: found 1 on one stage, expected 0":        {"1f1b", Options{Stages: 1, Microbatches: 4, Depth: 1}},
		"schedule gpipe: depth: found 1, expected 0: only 1f1b and 2bw": {"gpipe", Options{Stages: 2, Microbatches: 4, Depth: 1}},
		"schedule 2bw: depth: found -1, expected 0 to":                  {"2bw", Options{Stages: 2, Microbatches: 4, Depth: -1}},
		"schedule 2bw: depth: found 1000000000, expected 0 to":          {"2bw", Options{Stages: 2, Microbatches: 4, Depth: 1e9}},
		"schedule 1f1b: stale microbatches: found 1, expected 0":        {"1f1b", Options{Stages: 3, Microbatches: 4, Stale: 1}},
		"schedule interleaved: microbatches: found 3 on 2 stages, expected a multiple": {"interleaved",
			Options{Stages: 2, Microbatches: 3}},
		"schedule interleaved: chunks: found 1, expected at least 2": {"interleaved", Options{Stages: 2, Microbatches: 2, Chunks: 1}},
		"schedule 1f1b: chunks: found 2, expected 1: several chunks per stage need schedule interleaved": {"1f1b",
			Options{Stages: 2, Microbatches: 2, Chunks: 2}},
		"schedule pipedream: microbatches: found 4, expected 1": {"pipedream", Options{Stages: 2, Microbatches: 4}},
		"schedule gpipe: stages: found 0, expected 1 to 4096":   {"gpipe", Options{Microbatches: 4}},
		"schedule gpipe: microbatches: found -1, expected":      {"gpipe", Options{Stages: 1, Microbatches: -1}},
		"schedule gpipe: batches: found 1000000000, expected":   {"gpipe", Options{Stages: 1, Microbatches: 1, Batches: 1e9}},
		"schedule gpipe: 4096 stages · 1 chunks · 999999999 microbatches · 1 batches are too": {"gpipe",
			Options{Stages: 4096, Microbatches: 999999999}},
	} {
		_, err := Generate(c.name, c.o)
		assert.ErrorContains(t, err, want)
	}
}

// Action lists of any length may be read in part, and agree with the whole.
func TestLazyActionLists(t *testing.T) {
	for _, f := range Families() {
		name := f.Name
		o := f.Example(Options{Stages: 3, Batches: maxNumber})
		long, err := New(name, o)
		require.NoError(t, err)
		o.Batches = 9
		short, err := Generate(name, o)
		require.NoError(t, err)
		copies := Copies{Tied: f.Delay >= 0}
		communicating, err := Communicate(short, copies)
		require.NoError(t, err)
		longCommunicating, err := long.Communicate(copies)
		require.NoError(t, err)
		for s := range o.Stages {
			assert.Equal(t, short.Actions[s][:16], first(long, s, 16), name)
			assert.Equal(t, communicating.Actions[s][:16], first(longCommunicating, s, 16), name)
		}
	}
}

func first(g *Generator, stage, n int) (actions []Action) {
	for a := range g.Actions(stage) {
		if actions = append(actions, a); len(actions) == n {
			break
		}
	}
	return actions
}

func TestRepeat(t *testing.T) {
	s, err := Generate("1f1b", Options{Stages: 3, Microbatches: 4})
	require.NoError(t, err)
	g, err := Repeat(s, 7)
	require.NoError(t, err)
	want, err := Generate("1f1b", Options{Stages: 3, Microbatches: 4, Batches: 7})
	require.NoError(t, err)
	got, err := g.Schedule()
	require.NoError(t, err)
	assert.Equal(t, want, got)

	two, err := Generate("2bw", Options{Stages: 3, Microbatches: 3, Batches: 2})
	require.NoError(t, err)
	g, err = Repeat(two, 3)
	require.NoError(t, err)
	assert.Equal(t, 3, g.Head().Batches)
	for i := range 3 { // the second time, the first half
		actions := slices.Collect(g.Actions(i))
		assert.Equal(t, two.Actions[i], actions[:len(two.Actions[i])])
		rest := actions[len(two.Actions[i]):]
		assert.Len(t, rest, 7)
		for _, a := range rest {
			assert.Equal(t, 2, a.Batch)
		}
	}
	_, err = Repeat(s, 0)
	assert.ErrorContains(t, err, "batches: found 0")
}

// SplitBackward replaces each backward by its two parts and changes nothing else.
func TestSplitBackward(t *testing.T) {
	for _, name := range []string{"2bw", "1f1b", "zb-h1"} {
		g, err := New(name, Options{Stages: 3, Microbatches: 4, Batches: 3})
		require.NoError(t, err)
		h := g.SplitBackward()
		assert.Equal(t, g.Head(), h.Head())
		s, err := h.Schedule()
		require.NoError(t, err)
		_, err = Validate(s)
		require.NoError(t, err)
		for stage := range 3 {
			var want, got []string
			for a := range g.Actions(stage) {
				if a.Kind == Backward {
					want = append(want, strings.Replace(a.String(), "B", "I", 1), strings.Replace(a.String(), "B", "W", 1))
				} else {
					want = append(want, a.String())
				}
			}
			for a := range h.Actions(stage) {
				got = append(got, a.String())
				if len(got) == len(want)/2 { // a reader may stop at any action
					break
				}
			}
			assert.Equal(t, want[:len(got)], got)
		}
	}
}
