//go:build linux && cgo

package cputest

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shape is the model of small with more features.
func shape(features string) string {
	return "model={vocab_size: 256, d_model: 32, n_layers: 4, n_heads: 2, d_ff: 48, seq_len: 32, " + features + "}"
}

// experts are mixtures behind a dense layer, with every kind of balancing.
const experts = "moe: {experts: 4, top_k: 2, d_ff: 16, shared: 1, dense_first: 1, score: sigmoid, normalize: true, " +
	"balance: {bias: 0.01, aux: 0.1, z: 0.1}}"

// Cuts inside layers give the bits of one device, also where kernels span the middle of a layer that is not cut: with
// norms after the branches, and in 16 bits. They do for every family, without and with a delay.
func TestCutsInsideLayersEqualOneDevice(t *testing.T) {
	type layout struct {
		model, precision string
		delay            bool
		pipeline         string
	}
	for _, c := range tier.Divide(t, []layout{
		{shape("norm: {place: pre}"), "f32", true, "schedule: 2bw, stages: 5, cut: [layers.0.mlp, layers.1.mlp, layers.2.mlp, layers.3.mlp]"},
		{shape("tie_embeddings: true, norm: {place: both}"), "bf16", true, "schedule: 2bw, stages: 3, cut: [layers.0.mlp, layers.2.mlp]"},
		{shape(experts + ", tie_embeddings: true"), "f32", false, "stages: 3, cut: [layers.1.mlp, layers.2]"},
		{shape("norm: {place: pre}"), "bf16", false, "stages: 2, cut: [layers.1.mlp], recompute: always"},
		{shape("norm: {place: post, qk: full}"), "f16", false, "schedule: zb-h1, stages: 2, cut: [layers.2.mlp]"},
		{shape("norm: {place: both, qk: head}, ffn: {kind: geglu}"), "f32", false, "schedule: interleaved, stages: 5, chunks: 2"},
		{shape(experts), "bf16", true, "schedule: 2bw, stages: 3, cut: [layers.1, layers.2.mlp]"},
		{shape("norm: {place: pre, weight: false}, ffn: {kind: relu2}, attention: {window: 5, pattern: [local, full]}"), "bf16", false,
			"stages: 2, cut: [layers.2.mlp]"},
	}, tier.First[layout](1)) {
		common, late := []string{c.model, "train.precision=" + c.precision}, ""
		if c.delay {
			late = ", delay: 1, stale_microbatches: 4, correction: error_feedback"
		}
		one := filesOf(t, append(common, "pipeline={devices: [cpu:0]"+late+"}")...)
		got := filesOf(t, append(common, "pipeline={devices: [cpu:0], "+c.pipeline+late+"}")...)
		for file := range one {
			assert.True(t, one[file] == got[file], "%s: %s %s %v", file, c.model, c.precision, c.pipeline)
		}
	}
}

// A run that goes on with another cut, inside other layers, has the bits of one that was never stopped.
func TestResumedWithAnotherCut(t *testing.T) {
	type run struct{ model, precision string }
	for _, r := range tier.Divide(t, []run{{shape("norm: {place: pre}"), "f32"}, {shape("tie_embeddings: true, norm: {place: both}"), "bf16"}},
		tier.First[run](1)) {
		common := []string{r.model, "train.precision=" + r.precision, "pipeline.schedule=2bw", "pipeline.stages=2",
			"pipeline.correction=error_feedback"}
		whole := filesOf(t, append(common, "pipeline.cut=[3]")...)
		dir := t.TempDir()
		var last map[string]string
		for i, cut := range []string{"layers.0.mlp", "layers.2.mlp", "layers.1.self_attn"} {
			c := small(t, dir, append(common, "run.dir="+dir+"/run", "train.save_every=2", fmt.Sprintf("pipeline.cut=[%s]", cut))...)
			res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Resume: i > 0,
				StopAfter: []int{2, 4, 0}[i]})
			require.NoError(t, err)
			last = traintest.Files(t, res.Checkpoint)
		}
		requireEqual(t, whole, last, "resumed")
	}
}
