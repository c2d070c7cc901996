package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func staleConfig(t *testing.T, pipeline string) (Config, error) {
	t.Helper()
	return Parse("c.yaml", []byte(smallConfig+"train: {batch_size: 8, microbatches: 8}\npipeline: "+pipeline+"\n"), nil)
}

func TestStaleMicrobatches(t *testing.T) {
	for pipeline, want := range map[string]struct {
		stale, delay int
		mean         float64
	}{
		"{stages: 2}":                {0, 0, 0},
		"{schedule: 2bw, stages: 2}": {1, 1, 0.125},
		"{schedule: 2bw, stages: 3, stale_microbatches: auto}":                {2, 1, 0.25},
		"{schedule: 2bw, stages: 3, stale_microbatches: 6}":                   {6, 1, 0.75},
		"{schedule: 2bw, stages: 2, stale_microbatches: all}":                 {8, 1, 1},
		"{schedule: 2bw, stages: 2, replicas: 2}":                             {1, 1, 0.25},
		"{schedule: 2bw, stages: 2, replicas: 2, stale_microbatches: all}":    {4, 1, 1},
		"{stages: 1, delay: 1}":                                               {8, 1, 1},
		"{stages: 1, delay: 1, stale_microbatches: 3}":                        {3, 1, 0.375},
		"{stages: 1, delay: 1, stale_microbatches: 0}":                        {0, 0, 0},
		"{stages: 1, stale_microbatches: 0}":                                  {0, 0, 0},
		"{schedule: 2bw, stages: 1, correction: none, stale_microbatches: 8}": {8, 1, 1},
	} {
		c, err := staleConfig(t, pipeline)
		require.NoError(t, err, pipeline)
		assert.Equal(t, want.stale, c.Stale(), pipeline)
		assert.Equal(t, want.delay, c.Pipeline.Delay, pipeline)
		assert.InDelta(t, want.mean, c.Staleness(), 1e-12, pipeline)
		assert.Equal(t, 0 < want.stale && want.mean < 1, c.PartlyStale(), pipeline)
		g, err := c.Schedule(2)
		require.NoError(t, err, pipeline)
		assert.Equal(t, want.stale, g.Head().Stale, pipeline)
		again, err := Parse("again.yaml", c.YAML(), nil)
		require.NoError(t, err)
		assert.Equal(t, string(c.YAML()), string(again.YAML()), "written and read")
	}
}

func TestStaleMicrobatchesThatAreRefused(t *testing.T) {
	for pipeline, want := range map[string]string{
		"{schedule: 2bw, stages: 3, stale_microbatches: 1}":    "found 1, expected 2 to 8, auto or all: of the 8 microbatches of a replica's batch, 2 are on their way through 3 stages",
		"{schedule: 2bw, stages: 3, stale_microbatches: 0}":    "found 0, expected 2 to 8, auto or all",
		"{schedule: 2bw, stages: 2, stale_microbatches: 9}":    "found 9, expected 1 to 8, auto or all: a replica's batch has 8 microbatches",
		"{delay: 1, stale_microbatches: 9}":                    "found 9, expected 0 to 8, auto or all: a replica's batch has 8 microbatches",
		"{schedule: 2bw, stages: 2, stale_microbatches: -1}":   "found the integer -1, expected auto, all or a number of microbatches",
		"{schedule: 2bw, stages: 2, stale_microbatches: 1.5}":  "found the number 1.5, expected auto, all or a number of microbatches",
		"{schedule: 2bw, stages: 2, stale_microbatches: some}": `found text "some", expected auto, all or a number of microbatches`,
		"{schedule: 2bw, stages: 2, stale_microbatches: [1]}":  "found a list, expected auto, all or a number of microbatches",
		"{stages: 2, stale_microbatches: 1}":                   "found 1, expected auto: without pipeline.delay no microbatch is stale",
		"{stages: 2, stale_microbatches: all}":                 "found all, expected auto: without pipeline.delay no microbatch is stale",
	} {
		_, err := staleConfig(t, pipeline)
		assert.ErrorContains(t, err, "pipeline.stale_microbatches: "+want, pipeline)
		assert.ErrorContains(t, err, "c.yaml:", pipeline)
	}
}

func TestACorrectionNeedsStaleMicrobatches(t *testing.T) {
	for pipeline, key := range map[string]string{"": "pipeline.delay", "delay: 1, stale_microbatches: 0, ": "pipeline.stale_microbatches"} {
		_, err := staleConfig(t, "{"+pipeline+"correction: dc_asgd}")
		assert.ErrorContains(t, err, `pipeline.correction: found "dc_asgd", expected none: it corrects delayed updates, and `+key+" is 0")
	}
}

// Whatever the number of stale microbatches, it is the number of microbatches that is too small.
func TestTooFewMicrobatchesForTheStages(t *testing.T) {
	for _, stale := range []string{"auto", "all", "0", "1", "3", "4", "9"} {
		_, err := Parse("c.yaml", []byte(smallConfig+"train: {batch_size: 4, microbatches: 4}\npipeline: {schedule: 2bw, stages: 5, stale_microbatches: "+stale+"}\n"), nil)
		assert.ErrorContains(t, err, "c.yaml:5: train.microbatches: found 4, expected at least one per stage", stale)
	}
}

// A schedule file says itself how many microbatches are stale.
func TestStaleMicrobatchesOfAScheduleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.txt")
	text := "# delay: 1\n# stale: 3\nF0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0 U0\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	base := smallConfig + "train: {batch_size: 8, microbatches: 4}\npipeline: {stages: 1, delay: 1, schedule: " + path
	c, err := Parse("c.yaml", []byte(base+"}\n"), nil)
	require.NoError(t, err)
	assert.Equal(t, 3, c.Stale())
	_, err = Parse("c.yaml", []byte(base+", stale_microbatches: 2}\n"), nil)
	assert.ErrorContains(t, err, "pipeline.stale_microbatches: found 2, expected 3, as in schedule "+path)
}

// A run that continues on other stages keeps its stale microbatches, if there are enough for them.
func TestKeepStale(t *testing.T) {
	saved, err := staleConfig(t, "{schedule: 2bw, stages: 3}")
	require.NoError(t, err)
	for pipeline, want := range map[string]int{"{schedule: 2bw, stages: 2}": 2, "{stages: 1, delay: 1}": 2, "{schedule: 2bw, stages: 3}": 2,
		"{schedule: 2bw, stages: 2, stale_microbatches: all}": 8} {
		c, err := staleConfig(t, pipeline)
		require.NoError(t, err)
		c, err = c.KeepStale(saved)
		require.NoError(t, err)
		assert.Equal(t, want, c.Stale(), pipeline)
	}
	four, err := staleConfig(t, "{schedule: 2bw, stages: 4}")
	require.NoError(t, err)
	_, err = four.KeepStale(saved)
	assert.ErrorContains(t, err, "pipeline.stages: found 4, expected at most 3: the saved run has 2 of 8 microbatches stale, and 4 stages need 3")
	old, err := ParseSaved("old.yaml", []byte("pipeline: {schedule: 2bw, stages: 3, delay: 1}\ntrain: {batch_size: 8, microbatches: 8}\n"))
	require.NoError(t, err)
	assert.Equal(t, 8, old.Stale(), "a config from before the key existed")
}
