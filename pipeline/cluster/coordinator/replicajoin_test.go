package coordinator

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// A member that joins takes the place of a replica that is lost, while the others go on: it begins at the shared
// weights. At the end of the run, when all exchanges have landed, it has the weights of the others.
func TestReplicasJoin(t *testing.T) {
	for _, x := range []struct {
		inRound, pairs bool // of members, for each replica
		overrides      []string
	}{
		{true, false, []string{"pipeline.outer={wire: int4, late: 2}"}},
		{true, false, []string{"pipeline.local_steps=1"}},
		{false, false, []string{"pipeline.outer={wire: f32, late: 1}", "pipeline.schedule=2bw"}},
		{true, true, []string{"pipeline.stages=2", "model.tie_embeddings=true"}},
	} {
		dir, n, offers := t.TempDir(), newNetwork(), make(chan []string, 1)
		group := func(id string) []string {
			if x.pairs {
				return []string{id, id + "2"}
			}
			return []string{id}
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			for _, member := range group(id) {
				n.add(t, member)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		joins := make(chan struct{})
		join := sync.OnceFunc(func() { close(joins) })
		defer context.AfterFunc(ctx, join)()
		report := &runtest.Notes{OnStep: func(p train.Progress) {
			if p.Step != 4 {
				return
			}
			hold := func(until chan struct{}) {
				n.mu.Lock()
				n.results = until
				n.mu.Unlock()
			}
			r := n.host.(*Replicas)
			if x.inRound { // few batches are granted before it begins
				hold(joins)
				go func() {
					for !slices.ContainsFunc(r.present(), func(s *slot) bool { return s.pipeline.group.has("d") }) && ctx.Err() == nil {
						runtime.Gosched()
					}
					hold(nil)
					join()
				}()
			}
			n.vanish("b")
			offers <- group("d")
			for !x.inRound && !r.joinerWaits() && ctx.Err() == nil {
				runtime.Gosched()
			}
		}}
		every := "train={batch_size: 12, microbatches: 12, eval_every: 0, save_every: 0, steps: 40}"
		if !x.inRound {
			every = "train={batch_size: 12, microbatches: 12, eval_every: 8, save_every: 20, steps: 40}"
		}
		o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.elastic(offers, group("a"), group("b"),
			group("c"))}, Report: report}
		c := independent(t, dir, "run", append(x.overrides, "pipeline.replicas=3", every)...)
		res, err := train.Run(ctx, c, o)
		require.NoError(t, err)
		assert.Equal(t, 40, res.Step)
		text, err := os.ReadFile(dir + "/run/events.jsonl")
		require.NoError(t, err)
		assert.Contains(t, string(text), "replica 1 begins after step ")
		assert.NotContains(t, string(text), `"event":"restart"`)
		all := tensorsOf(t, res)
		for _, param := range []string{"model.norm.weight", "model.layers.0.mlp.up_proj.weight"} {
			assert.Equal(t, all["outer/base/"+param], all["replicas/1/weights/"+param])
			assert.Equal(t, all["replicas/0/weights/"+param], all["replicas/1/weights/"+param])
		}
	}
}

// joinsEarly is replicas that a member joins as soon as it can.
type joinsEarly struct {
	*Replicas
	t *testing.T
}

// Restore implements train's restoring.
func (j joinsEarly) Restore(s replicas.Saved, at *replicas.Position) (int, error) {
	for range 1000 {
		runtime.Gosched()
	}
	assert.Len(j.t, j.known(), 1, "nothing joins before the state is restored")
	return j.Replicas.Restore(s, at)
}

// A replica that joins a run that goes on from a checkpoint begins at the weights of that.
func TestReplicasJoinWhatIsRestored(t *testing.T) {
	dir, n, offers := t.TempDir(), newNetwork(), make(chan []string, 1)
	c := independent(t, dir, "run", "pipeline.devices=[cpu:0/1]", "train.steps=40", "train.save_every=0", "train.eval_every=20")
	_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Report: &runtest.Notes{},
		StopAfter: 4})
	require.NoError(t, err)
	n.add(t, "a")
	n.add(t, "b")
	offers <- []string{"b"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	report := &runtest.Notes{OnStep: func(p train.Progress) {
		for r := n.host.(*Replicas); p.Step == 6 && ctx.Err() == nil && len(r.present()) < 2 && !r.joinerWaits(); {
			runtime.Gosched()
		}
	}}
	remote := n.elastic(offers, []string{"a"}, nil)
	o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: func(ctx context.Context,
		task train.RemoteTask) (train.Pipeline, error) {
		p, err := remote(ctx, task)
		require.NoError(t, err)
		return joinsEarly{p.(*Replicas), t}, nil
	}}, Report: report, Resume: true}
	res, err := train.Run(ctx, c, o)
	require.NoError(t, err)
	all := tensorsOf(t, res)
	const param = "model.layers.0.mlp.up_proj.weight"
	assert.Equal(t, all["replicas/0/weights/"+param], all["replicas/1/weights/"+param])
}

// joinerWaits reports whether a replica begins with the next round.
func (r *Replicas) joinerWaits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.places.joining != nil && r.places.joining.waits
}
