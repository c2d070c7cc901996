package trace

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// drawn writes a trace from rows of text, a letter a millisecond: the kind of a run, '.' for a wait, '>' for a send,
// '<' for a receive. batches has the batch of each letter.
func drawn(t *testing.T, rows map[string]string, batches map[string]string, also func(w *Writer, at func(int) time.Time)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	at := func(i int) time.Time { return w.start.Add(time.Duration(i) * ms) }
	categories := map[byte]Category{'F': Forward, 'B': Backward, 'E': Evaluate, 'U': Update, 'N': GradientNorm, '.': Wait, '>': Send,
		'<': Receive}
	w.Tracks("stage 0", "stage 1")
	for name, row := range rows {
		for i := 0; i < len(row); {
			end := i + 1
			for end < len(row) && row[end] == row[i] && batches[name][end] == batches[name][i] {
				end++
			}
			if c := row[i]; c != ' ' {
				w.Complete(name, categories[c], fmt.Sprintf("%c0.%c", c, batches[name][i]), at(i), time.Duration(end-i)*ms,
					map[string]any{"batch": int(batches[name][i] - '0')})
			}
			i = end
		}
	}
	if also != nil {
		also(w, at)
	}
	require.NoError(t, w.Close())
	return path
}

func TestSummary(t *testing.T) {
	// Two stages, four batches, then an evaluation, then two batches.
	path := drawn(t, map[string]string{
		"stage 0":         "FFBB.UFFBB.UFFBB.UFFBB.U   EE FBFB",
		"stage 0 send":    "  >>    >>    >>    >>            ",
		"stage 0 receive": "     <     <     <     <          ",
		"stage 1":         "..FFBB..FFBB..FFBB..FFBB  .EE..FBFB",
	}, map[string]string{
		"stage 0":         "0000001111112222223333330000004455",
		"stage 0 send":    "0000001111112222223333330000000000",
		"stage 0 receive": "0000001111112222223333330000000000",
		"stage 1":         "00000011111122222233333300000004455",
	}, func(w *Writer, at func(int) time.Time) {
		w.Complete(RunTrack, Run, TrainEvent, at(0), 24*ms, map[string]any{"from": 0, "to": 4})
		w.Complete(RunTrack, Run, EvaluateEvent, at(24), 5*ms, nil)
	})
	s, err := Summarize(path)
	require.NoError(t, err)
	assert.Equal(t, path, s.File)
	assert.False(t, s.Cut)
	assert.Equal(t, 6, s.Batches)
	require.Len(t, s.Stages, 2)

	zero := s.Stages[0]
	assert.Equal(t, "stage 0", zero.Name)
	assert.InDelta(t, 0.035, zero.All.Seconds, 1e-9, "to the end of the other stage")
	// From the first forward of batch 1 to that of batch 3: two periods of 6 ms, each 4 computing, 1 waiting, 1
	// updating; 3 of transfers. The batches after the evaluation have no steady state.
	want := Shares{Seconds: 0.012, Batches: 2, Busy: 5. / 6, Compute: 4. / 6, Update: 1. / 6, Wait: 1. / 6, Transfer: 3. / 6,
		Bubble: 1. / 6}
	approximately(t, want, *zero.Steady)
	assert.InDelta(t, (4*4+4)*1e-3/0.035+2e-3/0.035, zero.All.Compute, 1e-9, "evaluation included")
	assert.InDelta(t, 0.0018, zero.Means["F"], 3e-4)
	assert.InDelta(t, 0.001, zero.Means["U"], 1e-9)

	one := s.Stages[1]
	approximately(t, Shares{Seconds: 0.012, Batches: 2, Busy: 4. / 6, Compute: 4. / 6, Wait: 2. / 6, Bubble: 2. / 6}, *one.Steady)
	approximately(t, Shares{Seconds: 0.012, Batches: 2, Busy: 4.5 / 6, Compute: 4. / 6, Update: .5 / 6, Wait: 1.5 / 6, Transfer: 1.5 / 6,
		Bubble: 1.5 / 6}, *s.Steady)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"steady":{"seconds":0.012`)
}

func approximately(t *testing.T, want, got Shares) {
	t.Helper()
	assert.Equal(t, want.Batches, got.Batches)
	for _, f := range [][2]float64{{want.Seconds, got.Seconds}, {want.Busy, got.Busy}, {want.Compute, got.Compute},
		{want.Update, got.Update}, {want.Wait, got.Wait}, {want.Transfer, got.Transfer}, {want.Bubble, got.Bubble}} {
		assert.InDelta(t, f[0], f[1], 1e-9, "%+v", got)
	}
}

// Sends and receives of one stage may overlap: that time counts once.
func TestTransfersOverlap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	at := func(i int) time.Time { return w.start.Add(time.Duration(i) * ms) }
	for b := range 4 {
		w.Complete("stage 0", Forward, fmt.Sprintf("F0.%d", b), at(10*b), 10*ms, map[string]any{"batch": b})
		w.Complete(SendTrack("stage 0"), Send, "x", at(10*b), 4*ms, nil)
		w.Complete(ReceiveTrack("stage 0"), Receive, "y", at(10*b+1), 5*ms, nil)
	}
	require.NoError(t, w.Close())
	s, err := Summarize(path)
	require.NoError(t, err)
	approximately(t, Shares{Seconds: 0.02, Batches: 2, Busy: 1, Compute: 1, Transfer: 0.6}, *s.Steady)
}

// What was under way when a device was lost is no part of the steady state that comes after it.
func TestSummaryOfARestart(t *testing.T) {
	path := drawn(t, map[string]string{"stage 0": "FBFBF          FBFBFB.FB"}, map[string]string{"stage 0": "00112          001122333"},
		func(w *Writer, at func(int) time.Time) {
			w.Complete(RunTrack, Run, TrainEvent, at(0), 5*ms, map[string]any{"from": 0, "to": 0})
			w.Complete(RunTrack, Run, RestartEvent, at(5), 10*ms, nil)
			w.Complete(RunTrack, Run, TrainEvent, at(15), 9*ms, map[string]any{"from": 0, "to": 4})
		})
	s, err := Summarize(path)
	require.NoError(t, err)
	assert.Equal(t, []int{4, 1}, []int{s.Batches, s.Restarts})
	approximately(t, Shares{Seconds: 0.005, Batches: 2, Busy: 0.8, Compute: 0.8, Wait: 0.2, Bubble: 0.2}, *s.Steady)
}

// The file of a killed run may end anywhere.
func TestCutFile(t *testing.T) {
	path := drawn(t, map[string]string{"stage 0": "FBFBFB"}, map[string]string{"stage 0": "001122"}, nil)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	complete, err := Summarize(path)
	require.NoError(t, err)
	var ends []int
	for n := strings.Index(string(whole), `"B0.0"`) + 200; n < len(strings.TrimRight(string(whole), "\n")); n++ {
		ends = append(ends, n)
	}
	for _, n := range tier.Some(t, ends, tier.Every[int](7)) {
		require.NoError(t, os.WriteFile(path, whole[:n], 0o666))
		s, err := Summarize(path)
		require.NoError(t, err, "%s", whole[:n])
		assert.True(t, s.Cut)
		assert.LessOrEqual(t, s.Batches, complete.Batches)
		assert.Positive(t, s.Batches)
	}
}

func TestFilesThatAreNoTraces(t *testing.T) {
	dir := t.TempDir()
	named := `{"name":"thread_name","ph":"M","tid":1,"args":{"name":"stage 0"}},`
	for text, want := range map[string]string{
		``:                                       "the file is empty, expected a JSON array of trace events",
		`{}`:                                     "found {, expected a JSON array",
		`"x"`:                                    "found x, expected a JSON array",
		`nope`:                                   "expected a JSON array of trace events: invalid character",
		`[]`:                                     `found no stage that computed, expected events of category "forward"`,
		`[{"name":"a","ph":"X","tid":1,"ts":1}]`: `event 0, before byte 37: "a" has no ts or no dur`,
		`[{"name":"a","ph":"X","tid":1,"ts":1,"dur":2}]`:                          `"a" is on track 1, expected one that has been named`,
		`[{"name":"thread_name","ph":"M","tid":1,"args":{}}]`:                     "found no args.name, expected the name of track 1",
		`[` + named + `{"name":"a","ph":"X","tid":1,"ts":1,"dur":-2}]`:            "event 1, before byte",
		`[` + named + `{"name":"a","ph":"X","tid":1,"ts":"x","dur":2}]`:           "event 1, before byte",
		`[` + named + `{"name":"a","ph":"X","tid":1,"ts":1,"dur":2,"args":[1]}]`:  `args of "a"`,
		`[` + named + `{"name":"a","ph":"X","cat":"forward","tid":1,"ts":1 nope}`: "event 1, before byte",
		`[` + named + `nope]`: "event 1, before byte",
	} {
		path := filepath.Join(dir, "trace.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		_, err := Summarize(path)
		require.ErrorContains(t, err, want, text)
		assert.ErrorContains(t, err, path)
	}
	_, err := Summarize(filepath.Join(dir, "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A batch that hooks had yet to make, and that was waited for, counts in the time in which it was.
func TestSummaryOfWaitsForData(t *testing.T) {
	path := drawn(t, map[string]string{"stage 0": "FB..FB..FB..FB"}, map[string]string{"stage 0": "00  11  22  33"},
		func(w *Writer, at func(int) time.Time) {
			w.Tracks(DataTrack)
			w.Complete(DataTrack, Data, "batch 1", at(2), ms, nil) // before the steady state
			w.Complete(DataTrack, Data, "batch 2", at(7), 2*ms, nil)
			w.Complete(DataTrack, Data, "batch 3", at(11), 3*ms, nil) // and behind it, in part
			w.Complete(RunTrack, Run, TrainEvent, at(0), 14*ms, map[string]any{"from": 0, "to": 4})
		})
	s, err := Summarize(path)
	require.NoError(t, err)
	require.Len(t, s.Stages, 1, "data is no stage")
	assert.InDelta(t, 6./14, s.All.Data, 1e-9)
	assert.InDelta(t, 3./8, s.Steady.Data, 1e-9, "from the first forward of batch 1 to that of batch 3: 4 to 12")
	assert.InDelta(t, s.All.Data, s.Stages[0].All.Data, 1e-9)
}

// The staleness of a trace is the mean over its batches. Traces from before the argument existed have none.
func TestStaleness(t *testing.T) {
	for name, c := range map[string]struct {
		first, second map[string]any // arguments of two stretches of training
		want          *float64
	}{
		"none":    {map[string]any{"from": 0, "to": 1}, map[string]any{"from": 1, "to": 4}, nil},
		"some":    {map[string]any{"from": 0, "to": 1}, map[string]any{"from": 1, "to": 4, "staleness": 0.25}, new(0.25)},
		"both":    {map[string]any{"from": 0, "to": 1, "staleness": 1}, map[string]any{"from": 1, "to": 4, "staleness": 0.5}, new(0.625)},
		"current": {map[string]any{"from": 0, "to": 1, "staleness": 0}, map[string]any{"from": 1, "to": 4, "staleness": 0}, new(0.0)},
	} {
		rows, batches := map[string]string{"stage 0": "FBFBFBFB"}, map[string]string{"stage 0": "00112233"}
		s, err := Summarize(drawn(t, rows, batches, func(w *Writer, at func(int) time.Time) {
			w.Complete(RunTrack, Run, TrainEvent, at(0), 2*ms, c.first)
			w.Complete(RunTrack, Run, TrainEvent, at(2), 6*ms, c.second)
		}))
		require.NoError(t, err)
		assert.Equal(t, c.want, s.Staleness, name)
	}
}
