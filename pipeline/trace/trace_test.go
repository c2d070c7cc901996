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
	Ph   string
	Pid  int
	Tid  int
	Ts   float64
	Dur  float64
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
	at := w.start.Add(1500 * time.Nanosecond)
	w.Complete("webgpu:0", "F0", at, 2*time.Millisecond+time.Nanosecond, map[string]any{"step": 3, "loss": math.NaN()})
	w.Complete("loop", "save\n", at, -1, nil)
	w.Complete("webgpu:0", "B0", at.Add(time.Hour), 0, nil)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	w.Complete("loop", "too late", at, 0, nil)

	assert.Equal(t, []decoded{
		{"process_name", "M", 1, 0, 0, 0, map[string]any{"name": `run "demo"`}},
		{"thread_name", "M", 1, 1, 0, 0, map[string]any{"name": "webgpu:0"}},
		{"thread_sort_index", "M", 1, 1, 0, 0, map[string]any{"sort_index": 1.0}},
		{"F0", "X", 1, 1, 1.5, 2000.001, map[string]any{"step": 3.0, "loss": "NaN"}},
		{"thread_name", "M", 1, 2, 0, 0, map[string]any{"name": "loop"}},
		{"thread_sort_index", "M", 1, 2, 0, 0, map[string]any{"sort_index": 2.0}},
		{"save\n", "X", 1, 2, 1.5, 0, nil},
		{"B0", "X", 1, 1, 3600e6 + 1.5, 0, nil},
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
		w.Complete("a", "event", time.Now(), time.Microsecond, map[string]any{"n": n})
		n++
	}
	assert.Len(t, read(t, path), n+3)
	w.Complete("a", "event", time.Now(), time.Microsecond, nil)
	require.NoError(t, w.Flush())
	assert.Len(t, read(t, path), n+4)
	w.flushed = w.flushed.Add(-flushEvery)
	w.Complete("a", "event", time.Now(), time.Microsecond, nil)
	assert.Len(t, read(t, path), n+5, "a second has passed")
	require.NoError(t, w.Close())
}

func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 500 {
				w.Complete(fmt.Sprint("track ", g), "e", time.Now(), 1, map[string]any{"i": i})
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
	w.Complete("a", "e", time.Now(), 1, nil)
	require.ErrorIs(t, w.Flush(), os.ErrClosed)
	w.Complete("a", "e", time.Now(), 1, nil)
	assert.Zero(t, w.buf.Len(), "nothing piles up")
	require.Error(t, w.Close())
}
