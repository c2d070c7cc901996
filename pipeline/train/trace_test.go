package train_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chromeEvent is an event of trace.json as Chrome's trace event format defines it. Times are in microseconds.
type chromeEvent struct {
	Name, Cat, Ph, Bp string
	ID                *int
	Tid               int
	Ts, Dur           float64
	Args              map[string]any
}

// chromeTrace is a trace by kinds of events.
type chromeTrace struct {
	tracks       map[int]string
	slices       map[int][]chromeEvent // by track
	starts, ends map[int]chromeEvent   // of flows, by ID
	counters     []chromeEvent
}

func readChromeTrace(t *testing.T, path string) chromeTrace {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var events []chromeEvent
	require.NoError(t, json.Unmarshal(text, &events))
	c := chromeTrace{tracks: map[int]string{}, slices: map[int][]chromeEvent{}, starts: map[int]chromeEvent{}, ends: map[int]chromeEvent{}}
	flows := map[string]map[int]chromeEvent{"s": c.starts, "f": c.ends}
	for _, e := range events {
		switch {
		case e.Ph == "M" && e.Name == "thread_name":
			c.tracks[e.Tid] = e.Args["name"].(string)
		case e.Ph == "X":
			c.slices[e.Tid] = append(c.slices[e.Tid], e)
		case flows[e.Ph] != nil:
			require.NotNil(t, e.ID, "%+v", e)
			require.NotContains(t, flows[e.Ph], *e.ID, "each flow has one start and one end")
			flows[e.Ph][*e.ID] = e
		case e.Ph == "C":
			c.counters = append(c.counters, e)
		}
	}
	return c
}

// enclosing is the slice that an end of a flow binds to: the one of its track that contains its time.
func (c chromeTrace) enclosing(t *testing.T, e chromeEvent) chromeEvent {
	t.Helper()
	for _, s := range c.slices[e.Tid] {
		if s.Ts <= e.Ts && e.Ts <= s.Ts+s.Dur && s.Name == e.Name {
			return s
		}
	}
	require.Fail(t, "no slice contains the flow's end", "%+v on %q", e, c.tracks[e.Tid])
	return chromeEvent{}
}

// Every transfer of a run has an arrow in its trace, from the sender's slice to the receiver's, forward in time.
func TestTraceHasAnArrowForEveryTransfer(t *testing.T) {
	const steps, stages, microbatches = 5, 3, 4
	c := traintest.Demo(t, t.TempDir(), "model={vocab_size: 256, d_model: 8, n_layers: 3, n_heads: 2, d_ff: 12, seq_len: 8, tie_embeddings: true}",
		"train={steps: 5, batch_size: 8, microbatches: 4, save_every: 0}", "data.val_fraction=0", "pipeline={stages: 3, schedule: 2bw}")
	_, err := train.Run(t.Context(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	trace := readChromeTrace(t, filepath.Join(c.Run.Dir, "trace.json"))

	type hop struct{ kind, from, to string }
	arrows := map[hop]int{}
	received := map[string]bool{} // receive slices that an arrow enters
	for id, start := range trace.starts {
		end, ok := trace.ends[id]
		require.True(t, ok, "the flow %d has no end", id)
		assert.Equal(t, []string{start.Name, start.Cat, "e"}, []string{end.Name, end.Cat, end.Bp})
		out, in := trace.enclosing(t, start), trace.enclosing(t, end)
		assert.Equal(t, []string{"send", "receive"}, []string{out.Cat, in.Cat})
		assert.LessOrEqual(t, out.Ts+out.Dur, in.Ts, "%s is received after it was sent", start.Name)
		kind, _, _ := strings.Cut(start.Name, " ")
		if kind != "activation" && kind != "gradient" {
			kind = "other"
		}
		arrows[hop{kind, trace.tracks[start.Tid], trace.tracks[end.Tid]}]++
		received[trace.tracks[end.Tid]+in.Name] = true
	}
	assert.Len(t, trace.ends, len(trace.starts))

	stage := func(n int) string { return "stage " + string(rune('0'+n)) }
	for from := range stages {
		for to := range stages {
			want := map[string]int{"other": steps} // gradient norms, from each stage to each
			switch {
			case to == from:
				want["other"] = 0
			case to == from+1:
				want["activation"] = steps * microbatches
			case to == from-1:
				want["gradient"] = steps * microbatches
			}
			if from+to == stages-1 && from != to { // the tied embedding's gradient, or its updated weights
				want["other"] += steps
			}
			for _, kind := range []string{"activation", "gradient", "other"} {
				assert.Equal(t, want[kind], arrows[hop{kind, stage(from) + " send", stage(to) + " receive"}], "%s from %d to %d", kind,
					from, to)
			}
		}
	}
	for tid, slices := range trace.slices {
		for _, s := range slices {
			if s.Cat == "receive" {
				assert.True(t, received[trace.tracks[tid]+s.Name], "%s on %s has an arrow", s.Name, trace.tracks[tid])
			}
		}
	}
}

// The trace has the loss of every step as a counter.
func TestTraceHasTheLoss(t *testing.T) {
	c := traintest.Demo(t, t.TempDir())
	_, err := train.Run(t.Context(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	counters := readChromeTrace(t, filepath.Join(c.Run.Dir, "trace.json")).counters
	records, err := metrics.Read(filepath.Join(c.Run.Dir, "metrics.jsonl"))
	require.NoError(t, err)
	require.Len(t, counters, len(records))
	before := 0.0
	for i, e := range counters {
		assert.Equal(t, "loss", e.Name)
		assert.Equal(t, map[string]any{"nats per token": records[i].Values["loss"]}, e.Args)
		assert.Greater(t, e.Ts, before)
		before = e.Ts
	}
}
