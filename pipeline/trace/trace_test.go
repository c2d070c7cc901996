package trace

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type decoded struct {
	Name string
	Cat  Category
	Ph   string
	Pid  int
	Tid  int
	Ts   float64
	Dur  float64
	ID   int
	Bp   string
	Args map[string]any
}

func read(t *testing.T, path string) []decoded {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var out []decoded
	require.NoError(t, json.Unmarshal(text, &out), "%s", text)
	return out
}

func TestEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, `run "demo"`)
	require.NoError(t, err)
	w.Tracks(RunTrack, "stage 0")
	at := w.start.Add(1500 * time.Nanosecond)
	w.Complete("stage 0", Forward, "F0", at, 2*time.Millisecond+time.Nanosecond, map[string]any{"step": 3, "loss": math.NaN()})
	w.Complete("run", Run, "save\n", at, -1, nil)
	w.Complete("stage 0", Backward, "B0", at.Add(time.Hour), 0, nil)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	w.Complete("run", Run, "too late", at, 0, nil)

	assert.Equal(t, []decoded{
		{"process_name", "", "M", 1, 0, 0, 0, 0, "", map[string]any{"name": `run "demo"`}},
		{"thread_name", "", "M", 1, 1, 0, 0, 0, "", map[string]any{"name": "run"}},
		{"thread_sort_index", "", "M", 1, 1, 0, 0, 0, "", map[string]any{"sort_index": 1.0}},
		{"thread_name", "", "M", 1, 2, 0, 0, 0, "", map[string]any{"name": "stage 0"}},
		{"thread_sort_index", "", "M", 1, 2, 0, 0, 0, "", map[string]any{"sort_index": 2.0}},
		{"F0", Forward, "X", 1, 2, 1.5, 2000.001, 0, "", map[string]any{"step": 3.0, "loss": "NaN"}},
		{"save\n", Run, "X", 1, 1, 1.5, 0, 0, "", nil},
		{"B0", Backward, "X", 1, 2, 3600e6 + 1.5, 0, 0, "", nil},
	}, read(t, path))
}

// After every flush, and so after a kill at any time, the file is valid.
func TestUnfinishedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	assert.Len(t, read(t, path), 1)
	n := 0
	for info, err := os.Stat(path); info.Size() < 3*flushBytes; info, err = os.Stat(path) {
		require.NoError(t, err)
		w.Complete("a", Run, "event", time.Now(), time.Microsecond, map[string]any{"n": n})
		n++
	}
	assert.Len(t, read(t, path), n+3)
	w.Complete("a", Run, "event", time.Now(), time.Microsecond, nil)
	require.NoError(t, w.Flush())
	assert.Len(t, read(t, path), n+4)
	w.flushed = w.flushed.Add(-flushEvery)
	w.Complete("a", Run, "event", time.Now(), time.Microsecond, nil)
	assert.Len(t, read(t, path), n+5, "a second has passed")
	require.NoError(t, w.Close())
}

func TestFlowAndCounter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	at := func(i int) time.Time { return w.start.Add(time.Duration(i) * time.Millisecond) }
	for i := range 2 {
		w.Complete("stage 0 send", Send, "x", at(10*i), 2*time.Millisecond, nil)
		w.Complete("stage 1 receive", Receive, "x", at(10*i+5), time.Millisecond, nil)
		w.Flow("x", "stage 0 send", at(10*i), "stage 1 receive", at(10*i+5))
		w.Counter("loss", "nats", at(10*i+6), 2.5)
		w.Counter("loss", "nats", at(10*i+7), math.NaN())
		w.Counter("loss", "nats", at(10*i+7), math.Inf(-1))
	}
	require.NoError(t, w.Close())
	var got []decoded
	for _, e := range read(t, path) {
		if e.Ph != "M" && e.Ph != "X" {
			got = append(got, e)
		}
	}
	loss := map[string]any{"nats": 2.5}
	assert.Equal(t, []decoded{
		{Name: "x", Cat: Transfer, Ph: "s", Pid: 1, Tid: 1, ID: 1},
		{Name: "x", Cat: Transfer, Ph: "f", Pid: 1, Tid: 2, ID: 1, Bp: "e", Ts: 5000},
		{Name: "loss", Ph: "C", Pid: 1, Ts: 6000, Args: loss},
		{Name: "x", Cat: Transfer, Ph: "s", Pid: 1, Tid: 1, ID: 2, Ts: 10_000},
		{Name: "x", Cat: Transfer, Ph: "f", Pid: 1, Tid: 2, ID: 2, Bp: "e", Ts: 15_000},
		{Name: "loss", Ph: "C", Pid: 1, Ts: 16_000, Args: loss},
	}, got)

	slices := 0
	_, err = Read(path, func(Event) error { slices++; return nil }, nil)
	require.NoError(t, err)
	assert.Equal(t, 4, slices, "Read passes slices only")
	var none *Writer
	none.Flow("x", "a", at(0), "b", at(1))
	none.Counter("loss", "nats", at(0), 1)
}

// Files of earlier versions call the category of gradient norms "vote".
func TestReadLegacyCategory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	require.NoError(t, os.WriteFile(path, []byte(`[{"name":"thread_name","ph":"M","tid":1,"args":{"name":"stage 0"}},
{"name":"N0","cat":"vote","ph":"X","tid":1,"ts":0,"dur":1}]`), 0o666))
	_, err := Read(path, func(e Event) error {
		assert.Equal(t, GradientNorm, e.Category)
		return nil
	}, nil)
	require.NoError(t, err)
}

// A file that grows too large ends with an event that says so.
func TestFullFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	w.maxSize = 2000
	for i := range 100 {
		w.Complete("a", Run, fmt.Sprint("event ", i), time.Now(), time.Microsecond, nil)
	}
	w.Tracks("b")
	w.Process("p", "c")
	require.NoError(t, w.Close())
	w.Tracks("d")
	w.Process("q", "e")
	assert.Zero(t, w.buf.Len(), "nothing piles up")
	all := read(t, path)
	assert.Contains(t, all[len(all)-1].Name, "the trace ends here")
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(2500))

	w, err = Create(path, "p")
	require.NoError(t, err)
	w.maxSize = 2000
	for i := range 100 {
		w.Complete("stage 0", Forward, fmt.Sprint("F", i), time.Now(), time.Microsecond, map[string]any{"batch": i})
	}
	require.NoError(t, w.Close())
	s, err := Summarize(path)
	require.NoError(t, err)
	assert.True(t, s.Full)
	assert.False(t, s.Cut)
	assert.Less(t, s.Batches, 100)
}

func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 500 {
				w.Complete(fmt.Sprint("track ", g), Send, "e", time.Now(), 1, map[string]any{"i": i})
			}
		})
	}
	all.Wait()
	require.NoError(t, w.Close())
	next := map[int]float64{}
	for _, e := range read(t, path) {
		if e.Ph == "X" {
			require.Equal(t, next[e.Tid], e.Args["i"])
			next[e.Tid]++
		}
	}
	require.Len(t, next, 8)
	for _, n := range next {
		require.Equal(t, 500.0, n)
	}
}

func TestErrors(t *testing.T) {
	_, err := Create(filepath.Join(t.TempDir(), "no", "trace.json"), "p")
	require.ErrorIs(t, err, os.ErrNotExist)
	w, err := Create(filepath.Join(t.TempDir(), "trace.json"), "p")
	require.NoError(t, err)
	require.NoError(t, w.file.Close())
	w.Complete("a", Run, "e", time.Now(), 1, nil)
	require.ErrorIs(t, w.Flush(), os.ErrClosed)
	w.Complete("a", Run, "e", time.Now(), 1, nil)
	assert.Zero(t, w.buf.Len(), "nothing piles up")
	require.Error(t, w.Close())
}
