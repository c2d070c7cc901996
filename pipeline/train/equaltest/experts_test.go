package equaltest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

// routed is a model whose layers differ: the first is dense, the others are mixtures of experts with every kind of
// balancing.
const routed = "model={vocab_size: 256, d_model: 8, n_layers: 4, n_heads: 2, d_ff: 12, seq_len: 8, attention: {window: 5, pattern: [local, full]}, moe: {experts: 4, top_k: 2, d_ff: 6, shared: 1, dense_first: 1, score: sigmoid, normalize: true, " +
	"balance: {bias: 0.01, aux: 0.1, z: 0.1}}}"

// padded lays words into sequences of 8 tokens: some are shorter.
var padded = []string{"data.pack=best_fit", "data.separator=32"}

// Mixtures of experts give the same bits on any number of stages, with recomputation and with a delay.
func TestExpertsOnStages(t *testing.T) {
	type run struct{ common, layout []string }
	for _, c := range sample(t, 2, []run{
		{padded, []string{"pipeline={stages: 3}"}},
		{[]string{"pipeline={delay: 1, error_feedback: true, stale_microbatches: all}"}, []string{"pipeline.stages=2"}},
		{nil, []string{"pipeline={stages: 3, recompute: always}"}},
		{nil, []string{"pipeline={schedule: interleaved, stages: 2, chunks: 2}"}},
	}) {
		common := append([]string{routed}, c.common...)
		one, got := weightsOf(t, common...), weightsOf(t, append(common, c.layout...)...)
		for file := range one {
			assert.True(t, one[file] == got[file], "%s: %v", file, c)
		}
	}
}

// loadsOf reads the loads of the experts of each layer, by step.
func loadsOf(t *testing.T, dir string) (all []map[string][]float64) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "experts.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	for d := json.NewDecoder(f); d.More(); {
		var record map[string]json.RawMessage
		require.NoError(t, d.Decode(&record))
		delete(record, "step")
		loads := map[string][]float64{}
		for layer, text := range record {
			var xs []float64
			require.NoError(t, json.Unmarshal(text, &xs))
			loads[layer] = xs
		}
		all = append(all, loads)
	}
	return all
}

// Every step records the routing of each layer, of all replicas. A loss scale leaves loads as they are.
func TestRoutingIsRecorded(t *testing.T) {
	records := func(overrides ...string) []metrics.Record {
		c := traintest.Demo(t, t.TempDir(), append([]string{routed,
			"train={steps: 2, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 0}"}, overrides...)...)
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Plots = true
		res, err := train.Run(context.Background(), c, o)
		require.NoError(t, err)
		assert.FileExists(t, res.ExpertsPlot)
		rs, err := metrics.Read(filepath.Join(c.Run.Dir, "metrics.jsonl"))
		require.NoError(t, err)
		require.Len(t, rs, 2)
		loads := loadsOf(t, c.Run.Dir)
		require.Len(t, loads, 2)
		for _, r := range loads {
			require.Len(t, r, 3, "a layer is dense")
			for layer, xs := range r {
				assert.Len(t, xs, 4, layer)
				assert.EqualValues(t, 8*8*2, floats.Sum(xs), "%s: sequences · tokens · top_k", layer)
			}
		}
		return rs
	}
	one := records()
	for _, layout := range [][]string{{"pipeline={stages: 3}"}, {"pipeline={stages: 2, replicas: 2}", "train.precision=f16"}} {
		for i, r := range records(layout...) {
			assert.NotContains(t, r.Values, "layers.0/load_max")
			for layer := 1; layer < 4; layer++ {
				for _, name := range []string{"load_max", "idle_experts", "router_entropy", "aux_loss", "z_loss", "bias_range"} {
					name = fmt.Sprintf("layers.%d/%s", layer, name)
					assert.InDelta(t, one[i].Values[name], r.Values[name], 1e-2, "%v: %s", layout, name)
				}
			}
		}
	}
	assert.Zero(t, one[0].Values["layers.1/bias_range"])
	assert.Greater(t, one[1].Values["layers.1/bias_range"], 0.0)
	assert.InDelta(t, 1.386, one[0].Values["layers.3/router_entropy"], 1e-3)
}

// Padding counts neither in the loads of experts nor in tokens, on any number of stages and replicas.
func TestPaddingIsNotRecorded(t *testing.T) {
	records := func(layout ...string) []metrics.Record {
		c := traintest.Demo(t, t.TempDir(), slices.Concat([]string{routed,
			"train={steps: 4, batch_size: 8, microbatches: 4, eval_every: 0, save_every: 2}"}, padded, layout)...)
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.StopAfter = 2
		for range 2 { // the second time to the end
			_, err := train.Run(context.Background(), c, o)
			require.NoError(t, err)
			o.StopAfter, o.Resume = 0, true
		}
		rs := traintest.Measurements(t, c.Run.Dir)
		loads := loadsOf(t, c.Run.Dir)
		require.Len(t, loads, 4)
		before := 0.0
		for i, r := range loads {
			tokens := rs[i].Values["tokens"] - before
			before = rs[i].Values["tokens"]
			assert.Less(t, tokens, 8.0*8, "positions")
			assert.Greater(t, tokens, 8.0*4)
			for layer, xs := range r {
				assert.Equal(t, 2*tokens, floats.Sum(xs), "%s: tokens · top_k", layer)
			}
		}
		return rs
	}
	one := records()
	assert.Equal(t, one, records("pipeline={stages: 3}"))
	for i, r := range records("pipeline={stages: 2, replicas: 2}") {
		assert.Equal(t, one[i].Values["tokens"], r.Values["tokens"])
	}
}
