package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDepth(t *testing.T) {
	for pipeline, want := range map[string][3]int{ // depth, stale, the largest depth
		"{stages: 2}":                                                    {0, 0, 6},
		"{stages: 2, depth: 3}":                                          {3, 0, 6},
		"{stages: 1, depth: 0}":                                          {0, 0, 0},
		"{schedule: gpipe, stages: 2, depth: 0}":                         {0, 0, 0},
		"{schedule: 2bw, stages: 3}":                                     {0, 2, 5},
		"{schedule: 2bw, stages: 3, depth: auto}":                        {0, 2, 5},
		"{schedule: 2bw, stages: 3, depth: 0}":                           {0, 2, 5},
		"{schedule: 2bw, stages: 3, depth: 4}":                           {4, 6, 5},
		"{schedule: 2bw, stages: 3, depth: 5}":                           {5, 7, 5},
		"{schedule: 2bw, stages: 3, depth: 2, stale_microbatches: 4}":    {2, 4, 2},
		"{schedule: 2bw, stages: 3, depth: 2, stale_microbatches: all}":  {2, 8, 5},
		"{schedule: 2bw, stages: 3, stale_microbatches: 5}":              {0, 5, 3},
		"{schedule: 2bw, stages: 2, replicas: 2, depth: 2}":              {2, 3, 2},
		"{schedule: 1f1b, stages: 2, replicas: 2, depth: 1, chunks: 1}":  {1, 0, 2},
		"{schedule: interleaved, stages: 2, chunks: 2, replicas: 2}":     {0, 0, 0},
		"{schedule: 2bw, stages: 4, depth: 4, stale_microbatches: auto}": {4, 7, 4},
	} {
		c, err := staleConfig(t, pipeline)
		require.NoError(t, err, pipeline)
		assert.Equal(t, want, [3]int{c.Pipeline.Depth.Number(), c.Stale(), c.MostDepth()}, pipeline)
		g, err := c.Schedule(2)
		require.NoError(t, err, pipeline)
		assert.Equal(t, want[:2], []int{g.Head().Depth, g.Head().Stale}, pipeline)
		again, err := Parse("again.yaml", c.YAML(), nil)
		require.NoError(t, err)
		assert.Equal(t, string(c.YAML()), string(again.YAML()), "written and read")
	}
}

func TestDepthThatIsRefused(t *testing.T) {
	for pipeline, want := range map[string]string{
		"{schedule: 2bw, stages: 3, depth: 6}":                          "pipeline.depth: found 6, expected auto or 0 to 5: a replica's batch has 8 microbatches, of which 3 stages need one each",
		"{schedule: 2bw, stages: 2, replicas: 2, depth: 3}":             "pipeline.depth: found 3, expected auto or 0 to 2: a replica's batch has 4 microbatches",
		"{stages: 4, replicas: 2, depth: 1}":                            "pipeline.depth: found 1, expected auto or 0 to 0",
		"{stages: 1, depth: 1}":                                         "pipeline.depth: found 1, expected auto or 0: one stage waits for no other",
		"{schedule: zb-h1, stages: 2, depth: 1}":                        "pipeline.depth: found 1, expected auto or 0: schedule zb-h1 has no depth",
		"{schedule: 2bw, stages: 2, depth: -1}":                         "pipeline.depth: found the integer -1, expected auto or a number of microbatches",
		"{schedule: 2bw, stages: 2, depth: all}":                        `pipeline.depth: found text "all", expected auto or a number of microbatches`,
		"{schedule: 2bw, stages: 3, depth: 2, stale_microbatches: 3}":   "pipeline.stale_microbatches: found 3, expected 4 to 8, auto or all: of the 8 microbatches of a replica's batch, 4 are on their way through 3 stages at pipeline.depth 2",
		"{schedule: 2bw, stages: 5, replicas: 2, depth: 2}":             "train.microbatches: found 8, expected at least 7: one per stage and 2 more in flight",
		"{schedule: 2bw, stages: 2, depth: 99999999999999999999999999}": "pipeline.depth: found the number 99999999999999999999999999, expected auto or a number",
	} {
		_, err := staleConfig(t, pipeline)
		assert.ErrorContains(t, err, want, pipeline)
		assert.ErrorContains(t, err, "c.yaml:", pipeline)
	}
}

// A schedule file says itself how many microbatches are in flight.
func TestDepthOfAScheduleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.txt")
	text := "# depth: 1\nF0 F1 F2 B0 B1 B2 U0\nF0 B0 F1 B1 F2 B2 U0\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	base := smallConfig + "train: {batch_size: 3, microbatches: 3}\npipeline: {stages: 2, schedule: " + path
	c, err := Parse("c.yaml", []byte(base+"}\n"), nil)
	require.NoError(t, err)
	assert.Equal(t, DepthNumber(1), c.Pipeline.Depth)
	_, err = Parse("c.yaml", []byte(base+", depth: 2}\n"), nil)
	assert.ErrorContains(t, err, "pipeline.depth: found 2, expected 1, as in schedule "+path)
}

// A run that continues keeps its stale microbatches, and may have any depth that they allow.
func TestKeepStaleAtAnotherDepth(t *testing.T) {
	saved, err := staleConfig(t, "{schedule: 2bw, stages: 3, depth: 2}")
	require.NoError(t, err)
	for _, pipeline := range []string{"{schedule: 2bw, stages: 3}", "{schedule: 2bw, stages: 3, depth: 1}", "{schedule: 2bw, stages: 5}",
		"{schedule: 2bw, stages: 2, depth: 3}", "{stages: 1, delay: 1}"} {
		c, err := staleConfig(t, pipeline)
		require.NoError(t, err)
		c, err = c.KeepStale(saved)
		require.NoError(t, err)
		assert.Equal(t, 4, c.Stale(), pipeline)
		_, err = c.Schedule(1)
		assert.NoError(t, err, pipeline)
	}
	deep, err := staleConfig(t, "{schedule: 2bw, stages: 4, depth: 2}")
	require.NoError(t, err)
	_, err = deep.KeepStale(saved)
	assert.ErrorContains(t, err, "pipeline.depth: found 2, expected at most 1: the saved run has 4 of 8 microbatches stale, and 4 stages need 3 and the depth")
}
