package study

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSummariesOfRunsContinueAStudyElsewhere(t *testing.T) {
	summaries := t.TempDir()
	g := threeModes(t, "summaries: "+summaries+"\n")
	rep, err := execute(context.Background(), g, runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)

	run := Run{"muon", SyncMode, 1, 0.02, 1}
	dir := filepath.Join(summaries, filepath.Base(g.Folder(run)))
	text, err := os.ReadFile(filepath.Join(dir, "outcome.json"))
	require.NoError(t, err)
	var outcome struct {
		ValLoss float64 `json:"val_loss"`
		Version string
	}
	require.NoError(t, json.Unmarshal(text, &outcome))
	assert.Equal(t, truth(run), outcome.ValLoss)
	assert.Equal(t, version.String(), outcome.Version)
	records, err := metrics.Read(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	require.Len(t, records, 1, "the last of four steps")
	assert.Equal(t, 4, records[0].Step)
	assert.Equal(t, map[string]float64{"loss": truth(run) + 0.5, "val_loss": truth(run)}, records[0].Values)

	require.NoError(t, os.RemoveAll(dir), "the summary of one run is missing")
	elsewhere := threeModes(t, "summaries: "+summaries+"\n")
	f := faked(truth)
	again, err := execute(context.Background(), elsewhere, runs.Options{Train: f.Train}, nil)
	require.NoError(t, err)
	require.Len(t, f.Begun, 1)
	assert.Equal(t, run, runOf(f.Begun[0]))
	assert.Equal(t, rep.Cells, again.Cells)
	assert.Len(t, again.Files, len(rep.Files), "plots are drawn from summaries, too")
	assert.DirExists(t, dir)
}

// A study that goes on by its summaries has the commits of those who began it.
func TestSummariesKeepCommits(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	first := runtest.Cached(t, "datasets--o--d", "main", "1")
	summaries := t.TempDir()
	load := func() *Study {
		g, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+"\nset: {train.microbatches: 2, data.train: 'hf:datasets/o/d'}\nsummaries: "+
			summaries+"\n")
		require.NoError(t, err)
		return g
	}
	rep, err := execute(context.Background(), load(), runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)
	runtest.Cached(t, "datasets--o--d", "main", "2")
	require.NoError(t, os.RemoveAll(filepath.Join(summaries, filepath.Base(load().Folder(Run{"muon", SyncMode, 1, 0.02, 1})))))
	f := faked(truth)
	again, err := execute(context.Background(), load(), runs.Options{Train: f.Train}, nil)
	require.NoError(t, err)
	require.Len(t, f.Begun, 1)
	assert.Equal(t, []string{"hf:datasets/o/d@" + first}, f.Begun[0].Data.Train)
	assert.Equal(t, rep.Cells, again.Cells)

	file := filepath.Join(t.TempDir(), "g.yaml")
	require.NoError(t, os.WriteFile(file, []byte("dir: "+t.TempDir()+"\nsummaries: "+summaries+"\n"), 0o666))
	assert.Equal(t, hub.Pins{"hf:datasets/o/d": first}, runs.PinsOf(file), "which is asked for, too")
}

func TestSummariesOfAnotherConfigAreRefused(t *testing.T) {
	summaries := t.TempDir()
	_, err := execute(context.Background(), threeModes(t, "summaries: "+summaries+"\n"), runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)
	other, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+"\nset: {train.microbatches: 1}\nsummaries: "+summaries+"\n")
	require.NoError(t, err)
	_, err = runs.Plan(other)
	require.ErrorContains(t, err, "train.microbatches: found 2, but the study has 1 now")
	assert.ErrorContains(t, err, summaries)
}

// Without replicas that train on their own the keys of their exchanges have no effect: summaries stay valid with
// others.
func TestSummariesWithOtherKeysOfExchanges(t *testing.T) {
	summaries := t.TempDir()
	_, err := execute(context.Background(), threeModes(t, "summaries: "+summaries+"\n"), runs.Options{Train: faked(truth).Train}, nil)
	require.NoError(t, err)
	other, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+
		"\nset: {train.microbatches: 2, pipeline.outer.correction: eager}\nsummaries: "+summaries+"\n")
	require.NoError(t, err)
	_, err = runs.Plan(other)
	assert.NoError(t, err)
}
