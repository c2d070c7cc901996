package schedule

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The field's own pictures: PipeDream-2BW on three stages, and ZB-H1's first stages.
func TestLinesOfTheField(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Options
		stage int
		want  string
	}{
		{"2bw", Options{Stages: 3, Microbatches: 3, Batches: 3}, 0, "F0.0 F1.0 F2.0 B0.0 F0.1 B1.0 F1.1 B2.0 F2.1 B0.1 U0 F0.2 B1.1 F1.2 B2.1 F2.2 B0.2 B1.2 B2.2 U1 U2"},
		{"2bw", Options{Stages: 3, Microbatches: 3, Batches: 2}, 2, "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 U0 U1"},
		{"2bw", Options{Stages: 1, Microbatches: 1, Batches: 3}, 0, "F0.0 B0.0 F0.1 B0.1 U0 F0.2 B0.2 U1 U2"},
		{"1f1b", Options{Stages: 3, Microbatches: 2, Batches: 1}, 0, "F0.0 F1.0 B0.0 B1.0 U0"},
		{"zb-h1", Options{Stages: 3, Microbatches: 4, Batches: 1}, 1, "F0.0 F1.0 I0.0 F2.0 I1.0 W0.0 F3.0 I2.0 W1.0 I3.0 W2.0 W3.0 U0"},
		{"pipedream", Options{Stages: 2, Microbatches: 1, Batches: 3}, 0, "F0.0 F0.1 B0.0 U0 F0.2 B0.1 U1 B0.2 U2"},
		{"interleaved", Options{Stages: 2, Microbatches: 2, Chunks: 2}, 1, "F0.0 F1.0 F0.0:1 B0.0:1 F1.0:1 B1.0:1 B0.0 B1.0 U0"},
	} {
		s, err := Generate(c.name, c.o)
		require.NoError(t, err)
		var text string
		for _, a := range s.Lines[c.stage] {
			text += " " + a.String()
		}
		assert.Equal(t, c.want, text[1:], "%s %+v stage %d", c.name, c.o, c.stage)
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for want, c := range map[string]struct {
		name string
		o    Options
	}{
		`schedule "3bw": no such schedule, expected one of gpipe, 1f1b`:                       {"3bw", Options{Stages: 1, Microbatches: 1}},
		"schedule 2bw: found 3 microbatches a batch on 4 stages, expected at least as many":   {"2bw", Options{Stages: 4, Microbatches: 3}},
		"schedule interleaved: found 3 microbatches on 2 stages, expected a multiple":         {"interleaved", Options{Stages: 2, Microbatches: 3}},
		"schedule interleaved: chunks: found 1, expected at least 2":                          {"interleaved", Options{Stages: 2, Microbatches: 2, Chunks: 1}},
		"schedule 1f1b: chunks: found 2, expected 1":                                          {"1f1b", Options{Stages: 2, Microbatches: 2, Chunks: 2}},
		"schedule pipedream: microbatches: found 4, expected 1":                               {"pipedream", Options{Stages: 2, Microbatches: 4}},
		"schedule gpipe: stages: found 0, expected 1 to 4096":                                 {"gpipe", Options{Microbatches: 4}},
		"schedule gpipe: microbatches: found -1, expected":                                    {"gpipe", Options{Stages: 1, Microbatches: -1}},
		"schedule gpipe: batches: found 1000000000, expected":                                 {"gpipe", Options{Stages: 1, Microbatches: 1, Batches: 1e9}},
		"schedule gpipe: 4096 stages · 1 chunks · 999999999 microbatches · 1 batches are too": {"gpipe", Options{Stages: 4096, Microbatches: 999999999}},
	} {
		_, err := Generate(c.name, c.o)
		assert.ErrorContains(t, err, want)
	}
}

// Lines of any length are read in parts, and say the same as the whole.
func TestLazyLines(t *testing.T) {
	names, _ := Names()
	for _, name := range names {
		o := Options{Stages: 3, Microbatches: 6, Batches: maxNumber}
		if name == "pipedream" {
			o.Microbatches = 1
		}
		long, err := New(name, o)
		require.NoError(t, err)
		o.Batches = 9
		short, err := Generate(name, o)
		require.NoError(t, err)
		links := Links{Tied: name != "pipedream"}
		told, err := Communicate(short, links)
		require.NoError(t, err)
		longTold, err := long.Communicate(links)
		require.NoError(t, err)
		for s := range o.Stages {
			assert.Equal(t, short.Lines[s][:16], first(long, s, 16), name)
			assert.Equal(t, told.Lines[s][:16], first(longTold, s, 16), name)
		}
	}
}

func first(g *Generator, stage, n int) (line []Action) {
	for a := range g.Line(stage) {
		if line = append(line, a); len(line) == n {
			break
		}
	}
	return line
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
	for i := range 3 { // the second time, half of it
		line := slices.Collect(g.Line(i))
		assert.Equal(t, two.Lines[i], line[:len(two.Lines[i])])
		rest := line[len(two.Lines[i]):]
		assert.Len(t, rest, 7)
		for _, a := range rest {
			assert.Equal(t, 2, a.Batch)
		}
	}
	_, err = Repeat(s, 0)
	assert.ErrorContains(t, err, "batches: found 0")
}

// Halves of a backward stand together, and all else stays.
func TestHalved(t *testing.T) {
	for _, name := range []string{"2bw", "1f1b", "zb-h1"} {
		g, err := New(name, Options{Stages: 3, Microbatches: 4, Batches: 3})
		require.NoError(t, err)
		h := g.Halved()
		assert.Equal(t, g.Head(), h.Head())
		s, err := h.Schedule()
		require.NoError(t, err)
		_, err = Validate(s)
		require.NoError(t, err)
		for stage := range 3 {
			var want, got []string
			for a := range g.Line(stage) {
				if a.Kind == Backward {
					want = append(want, strings.Replace(a.String(), "B", "I", 1), strings.Replace(a.String(), "B", "W", 1))
				} else {
					want = append(want, a.String())
				}
			}
			for a := range h.Line(stage) {
				got = append(got, a.String())
				if len(got) == len(want)/2 { // a line can be left at any action
					break
				}
			}
			assert.Equal(t, want[:len(got)], got)
		}
	}
}
