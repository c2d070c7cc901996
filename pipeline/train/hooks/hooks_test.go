package hooks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writeModule writes a module that exports one hook, which returns 0, and returns the hook's config.
func writeModule(t *testing.T, name string) config.Hook {
	t.Helper()
	m := w.Hook(name)
	path := filepath.Join(t.TempDir(), name+".wasm")
	require.NoError(t, os.WriteFile(path, m.Encode(), 0o666))
	return config.Hook{File: path, Hook: name}
}

// Every hook of the table has a lifecycle: a new one that is forgotten here panics.
func TestEveryHookHasALifecycle(t *testing.T) {
	for _, name := range hook.Names() {
		s, err := Open([]config.Hook{writeModule(t, name)}, Options{})
		require.NoError(t, err, name)
		assert.Len(t, s.modules, 1)
		states, err := s.State(context.Background(), nil)
		require.NoError(t, err)
		require.Len(t, states, 1)
		assert.Equal(t, name, states[0].Hook)
		assert.Empty(t, s.Differences(states))
		require.NoError(t, s.Close())
	}
	s := &Set{}
	assert.PanicsWithValue(t, `hook "new" has no lifecycle`, func() { s.assign(&module{config: config.Hook{Hook: "new"}}) })
}

func TestKindsChoosesModules(t *testing.T) {
	configs := []config.Hook{writeModule(t, hook.MapDocument), writeModule(t, hook.OnMetrics)}
	s, err := Open(configs, Options{Kinds: []string{hook.OnMetrics}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	assert.Nil(t, s.Documents.Open())
	require.NoError(t, s.Metrics.Open(context.Background(), nil))
	assert.Equal(t, stopInterval, s.Metrics.StopInterval())
	require.NoError(t, s.Rewind())
	assert.Zero(t, s.Metrics.StopInterval())
}

// A set without modules does nothing and needs no host.
func TestNoModules(t *testing.T) {
	s, err := Open(nil, Options{})
	require.NoError(t, err)
	ctx := context.Background()
	require.NoError(t, s.Rate.Open(ctx, optim.Schedule{}))
	require.NoError(t, s.Rate.Advance(ctx, 100))
	assert.Nil(t, s.Rate.Factor())
	require.NoError(t, s.Scalars.Open(ctx, nil, 100))
	require.NoError(t, s.Scalars.Advance(ctx, 0, 100))
	stoppedBy, err := s.Metrics.Observe(ctx, 1, nil)
	require.NoError(t, err)
	assert.Empty(t, stoppedBy)
	assert.True(t, s.Batches.None())
	_, ok := s.ModelModule()
	assert.False(t, ok)
	require.NoError(t, s.Close())
}

// A run of very many steps keeps the factors of the steps that it has reached alone, and asks for a thousand at a time.
func TestRateOfManySteps(t *testing.T) {
	s, err := Open([]config.Hook{writeModule(t, hook.LearningRate)}, Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	ctx := context.Background()
	require.NoError(t, s.Rate.Open(ctx, optim.Schedule{Name: optim.ScheduleNames()[0], Steps: schedule.MaxBatches}))
	assert.Len(t, s.Rate.factors, 1)
	for step := 0; step < 3*s.Rate.Interval(); step += s.Rate.Interval() {
		require.NoError(t, s.Rate.Advance(ctx, step+s.Rate.Interval()))
		assert.Len(t, s.Rate.factors, step+1000)
	}
}

// The log keeps a bounded number of lines between two flushes.
func TestLogIsBounded(t *testing.T) {
	var l log
	for i := range maxLines + 10 {
		l.Printf("line %d", i)
	}
	var lines []string
	note := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	l.flush(note)
	assert.Len(t, lines, maxLines)
	l.flush(note)
	assert.Len(t, lines, maxLines)
}

func TestDifferences(t *testing.T) {
	configs := []config.Hook{writeModule(t, hook.MapDocument), writeModule(t, hook.OnMetrics)}
	s, err := Open(configs, Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	saved, err := s.State(context.Background(), nil)
	require.NoError(t, err)
	assert.Empty(t, s.Differences(saved[:1]), "on_metrics may be added")
	saved[0].Seed = 7
	differences := s.Differences(saved)
	require.Len(t, differences, 1)
	assert.Contains(t, differences[0], "the checkpoint has map_document by module")
	assert.Contains(t, differences[0], "and seed 7, the config map_document")
	assert.Contains(t, s.Differences(nil)[0], "the checkpoint has nothing")
}
