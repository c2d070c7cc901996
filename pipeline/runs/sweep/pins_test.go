package sweep

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each revision of a repository has its own commit in a sweep, which goes on with those that it began with, whatever
// the revisions have become. Another revision in the file of a sweep that has begun is refused.
func TestEachRevisionKeepsItsCommit(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	is := func(revision, digit string) string { return runtest.Cached(t, "datasets--o--d", revision, digit) }
	c1, c2, c3 := is("v1", "1"), is("v2", "2"), is("main", "3")
	dir := t.TempDir()
	file := filepath.Join(dir, "s.yaml")
	write := func(common string) {
		require.NoError(t, os.WriteFile(file, []byte(smallBase+"set: {data.val: ['hf:datasets/o/d"+common+":validation']}\n"+
			"keys: {data.train: [[hf:datasets/o/d@v1], [hf:datasets/o/d@v2], [hf:datasets/o/d]]}\ndir: "+filepath.Join(dir, "sweep")+"\n"), 0o666))
	}
	write("@v1")
	s, err := Load(file, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	f := &runtest.Fake{Loss: bowl, Step: func(config.Config, int) { stop() }}
	_, err = runs.Compare(ctx, s, runs.Options{Train: f.Train}, nil)
	require.ErrorIs(t, err, runs.ErrInterrupted)
	require.Len(t, f.Begun, 1)

	is("v1", "4")
	is("main", "5")
	is("v3", "6")
	for _, path := range []string{file, s.Dir} {
		s, err = Load(path, nil)
		require.NoError(t, err)
		for i, commit := range []string{c1, c2, c3} {
			c, err := s.Config(Run{Trial: i + 1, Seed: 1})
			require.NoError(t, err)
			assert.Equal(t, []string{"hf:datasets/o/d@" + commit}, c.Data.Train)
			assert.Equal(t, []string{"hf:datasets/o/d@" + c1 + ":validation"}, c.Data.Val)
		}
		assert.Equal(t, hub.Pins{"hf:datasets/o/d": c3, "hf:datasets/o/d@v1": c1, "hf:datasets/o/d@v2": c2,
			"hf:datasets/o/d@v1:validation": c1}, runs.PinsOf(path))
	}
	f.Step = nil
	execute(t, s, f, runs.Options{})
	assert.Len(t, f.Begun, 4, "the first one went on")

	for _, common := range []string{"@v3", "", "@" + c2} {
		write(common)
		s, err = Load(file, nil)
		require.NoError(t, err)
		_, err = runs.Plan(s)
		assert.ErrorContains(t, err, "data.val", common)
	}
	write("@v1")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sweep", "commits.json"), []byte(`{"hf:o/m": "main"}`), 0o666))
	_, err = Load(file, nil)
	assert.ErrorContains(t, err, filepath.Join("sweep", "commits.json")+`: hf:o/m: found "main", expected a commit`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sweep", "commits.json"), []byte(strings.Repeat("[", 3)), 0o666))
	_, err = Load(file, nil)
	assert.ErrorContains(t, err, "commits.json")
}
