package equaltest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// replicaRuns are settings of replicas that train on their own: each number of replicas, local steps, format, lateness,
// correction, optimizer and delay is in several of them.
var replicaRuns = []string{
	"replicas=2 local_steps=8 outer.wire=int8 outer.late=3 optimizer.name=muon delay=1 stale_microbatches=1",
	"replicas=3 local_steps=3 outer.wire=int4 outer.late=2 optimizer.name=adamw",
	"replicas=2 local_steps=3 outer.wire=f32 outer.late=0 optimizer.name=muon",
	"replicas=3 local_steps=1 outer.wire=f32 outer.late=1 optimizer.name=muon",
	"replicas=2 local_steps=1 outer.wire=int2 outer.late=0 optimizer.name=adamw delay=1 stale_microbatches=all",
	"replicas=3 local_steps=8 outer.wire=bf16 outer.late=8 optimizer.name=adamw outer.correction=eager",
	"replicas=2 local_steps=3 outer.wire=int4 outer.late=1 optimizer.name=muon outer.correction=error_feedback",
	"replicas=2 local_steps=3 outer.wire=f32 outer.late=2 optimizer.name=muon outer.correction=eager delay=1 stale_microbatches=1",
	"replicas=2 local_steps=8 outer.wire=f32 outer.late=4 optimizer.name=muon correction=error_feedback delay=1 stale_microbatches=all",
	"replicas=1 local_steps=3 outer.wire=f32 outer.late=0 optimizer.name=adamw",
	"replicas=2 local_steps=3 outer.wire=int8 outer.late=1 optimizer.name=muon train.precision=f16",
	"replicas=3 local_steps=2 outer.wire=int4 outer.late=1 optimizer.name=muon model.tie_embeddings=true",
	"replicas=4 local_steps=8 outer.wire=int4 outer.late=5 optimizer.name=muon",
	"replicas=2 local_steps=3 outer.wire=int4 outer.late=1 train.batch_schedule={0:12,5:24}",
	"replicas=2 local_steps=3 outer.wire=int4 outer.late=1 model.moe={experts:4,top_k:2,d_ff:6,dense_first:1,score:sigmoid,balance:{bias:0.01,aux:0.1}}",
}

// overridesOf spells the keys of a setting in full.
func overridesOf(setting string, more ...string) []string {
	all := []string{"train={steps: 10, batch_size: 12, microbatches: 12, eval_every: 4, save_every: 0, grad_clip: 0.5}",
		"model={vocab_size: 256, d_model: 8, n_layers: 2, n_heads: 2, d_ff: 12, seq_len: 8}"}
	for _, kv := range strings.Fields(setting) {
		if !strings.HasPrefix(kv, "optimizer.") && !strings.HasPrefix(kv, "model.") && !strings.HasPrefix(kv, "train.") {
			kv = "pipeline." + kv
		}
		kv = strings.ReplaceAll(kv, ":", ": ")
		all = append(all, kv)
	}
	return append(all, more...)
}

// Replicas that train on their own have the same bits on one stage and on several, and if the run was stopped and
// resumed, also while pipelines are full.
func TestReplicasThatTrainOnTheirOwn(t *testing.T) {
	for i, setting := range sample(t, 1, replicaRuns) {
		t.Run(setting, func(t *testing.T) {
			one := weightsOf(t, overridesOf(setting)...)
			stages := "pipeline.stages=2"
			if !strings.Contains(setting, "delay=1") {
				stages = fmt.Sprint("pipeline.stages=", 2+i%2)
			}
			staged := weightsOf(t, overridesOf(setting, stages)...)
			c := traintest.Demo(t, t.TempDir(), overridesOf(setting, fmt.Sprint("pipeline.stages=", 1+i%2))...)
			runtest.Until(t, c, 3)
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			o.StopAfter, o.Resume = 7, true
			_, err := train.Run(t.Context(), c, o)
			require.NoError(t, err)
			resumed := traintest.Files(t, runtest.Until(t, c, 0).Checkpoint)
			for file := range one {
				assert.True(t, one[file] == staged[file], "%s with %s", file, stages)
				assert.True(t, one[file] == resumed[file], "%s after it was resumed", file)
			}
		})
	}
}
