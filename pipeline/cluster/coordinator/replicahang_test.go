package coordinator

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// swallow makes a message one that does not arrive.
func swallow(m *transport.Message) {
	m.Epoch, m.Header, m.Payload = 0, protocol.Encode(protocol.Filler{}), nil
}

// A replica that hangs is given up where the run itself waits for it, too: in an evaluation, and at a checkpoint.
func TestReplicasThatHangAtRest(t *testing.T) {
	tier.Rest(t)
	for _, request := range []string{protocol.Lend, "read"} {
		n, lent := newPair(t), atomic.Bool{}
		n.asked = func(_ context.Context, id, name string) error {
			lent.CompareAndSwap(false, id == "a" && name == protocol.Lend)
			return nil
		}
		n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
			_, result := h.(protocol.Result)
			_, ended := h.(protocol.Ended)
			_, tensor := h.(protocol.Tensor)
			if from == "a" && (request == protocol.Lend && (result || ended) && lent.Load() || request == "read" && tensor) {
				swallow(m)
			}
		}
		var failed []int
		wrap := func(r *Replicas) train.Pipeline {
			r.options.Failed = func(replica int) { failed = append(failed, replica) }
			return r
		}
		events, err := n.elastically(t, nil, wrap, "pipeline.watchdog=3s", "train.save_every=0")
		require.NoError(t, err)
		assert.Equal(t, []int{0}, failed, "other members are offered first")
		assert.Contains(t, events, "replica 0: no progress for 3s (pipeline.watchdog)", request)
	}
}

// The last replica hangs while another one joins, which waits for its exchanges: the run goes on with that one.
func TestReplicaJoinsOneThatHangs(t *testing.T) {
	tier.Rest(t)
	n, offers, never := newPair(t), make(chan []string, 1), make(chan struct{})
	n.add(t, "c")
	defer close(never)
	hangs := atomic.Bool{}
	n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
		if _, ok := h.(protocol.Move); ok && from == "a" && hangs.Load() {
			swallow(m)
		}
	}
	hang := func(until chan struct{}) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.results = until
	}
	dir := t.TempDir()
	report := &runtest.Notes{OnStep: func(p train.Progress) {
		if p.Step != 4 {
			return
		}
		hangs.Store(true)
		hang(never)
		n.vanish("b")
		offers <- []string{"c"}
		go func() {
			r := n.host.(*Replicas)
			for !slices.ContainsFunc(r.present(), func(s *slot) bool { return s.pipeline.group.has("c") }) && t.Context().Err() == nil {
				runtime.Gosched()
			}
			hang(nil) // what is under way does not arrive
		}()
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := train.Run(ctx, independent(t, dir, "run", "pipeline.watchdog=3s", "train.steps=40", "train.eval_every=0",
		"train.save_every=0"), train.Options{Devices: train.DeviceOptions{Open: testdevice.Open,
		Remote: n.elastic(offers, []string{"a"}, []string{"b"})}, Report: report})
	require.NoError(t, err)
	events, err := os.ReadFile(dir + "/run/events.jsonl")
	require.NoError(t, err)
	assert.Contains(t, string(events), "replica 0: no progress for 3s (pipeline.watchdog)")
	assert.NotContains(t, string(events), `"event":"restart"`)
}

// A member that hangs when the run begins does not hold up the others.
func TestReplicasThatHangAtTheStart(t *testing.T) {
	tier.Rest(t)
	n := newPair(t)
	n.asked = func(ctx context.Context, id, name string) error {
		if id == "b" && name == protocol.Load {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
	events, err := n.elastically(t, nil, func(r *Replicas) train.Pipeline {
		r.options.OpenTimeout = 5 * time.Second
		return r
	})
	require.NoError(t, err)
	assert.Contains(t, events, "its members took more than 5s to load it")
}

// What a member measures of a microbatch shows progress: a step may take longer than pipeline.watchdog.
func TestMicrobatchesShowProgress(t *testing.T) {
	n := 0
	p := &Pipeline{group: &group{members: []string{"a"}, failure: newFailure()}, replica: &ofReplica{progressed: func() { n++ }}}
	p.Receive("a", transport.Message{Header: protocol.Encode(protocol.Result{Segment: 1})})
	assert.Equal(t, 1, n)
}

// A replica that is lost while a checkpoint is written, in between or at the end, is away in that checkpoint. The run
// goes on from it.
func TestReplicaIsLostWhileACheckpointIsWritten(t *testing.T) {
	for _, step := range []int{3, 9} {
		n, saves, gone := newPair(t), atomic.Int64{}, atomic.Bool{}
		n.forge = func(from, to string, h protocol.Header, m *transport.Message) {
			if _, ok := h.(protocol.Read); ok && to == "b" {
				saves.Add(3)
			}
			if _, ok := h.(protocol.Tensor); ok && from == "b" && saves.Load() == int64(step) {
				swallow(m)
				if gone.CompareAndSwap(false, true) {
					go n.vanish("b")
				}
			}
		}
		dir := t.TempDir()
		c := independent(t, dir, "run", "train.keep=0", "train.eval_every=0")
		o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.replicas([]string{"a"}, []string{"b"})},
			Report: &runtest.Notes{}}
		_, err := train.Run(t.Context(), c, o)
		require.NoError(t, err)
		events, err := os.ReadFile(dir + "/run/events.jsonl")
		require.NoError(t, err)
		assert.Contains(t, string(events), "replica 1: b: test (", "step %d", step)
		assert.Contains(t, string(events), "replica 1 was lost while a checkpoint was written")
		for later := step + 3; later <= 9; later += 3 {
			require.NoError(t, os.RemoveAll(traintest.StepDir(dir+"/run", later)))
		}
		state, err := os.ReadFile(traintest.StepDir(dir+"/run", step) + "/state.json")
		require.NoError(t, err)
		assert.Regexp(t, `"without": \[\s*1\s*\]`, string(state))
		notes := &runtest.Notes{}
		res, err := train.Run(t.Context(), independent(t, dir, "run", "train.keep=0", "train.eval_every=0", "train.steps=12",
			"pipeline.devices=[cpu:0/1]"), train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Report: notes, Resume: true})
		require.NoError(t, err)
		assert.Equal(t, 12, res.Step)
		assert.Contains(t, notes.Text, "1 of 2 replicas have no state in the checkpoint: they begin at the shared weights with a fresh optimizer")
	}
}

// lostRead is a read that no member answers.
type lostRead struct{}

func (lostRead) Wait() ([]byte, error) { return nil, device.ErrLost }

// A save fails if all replicas have failed, although no other goroutine has noticed that yet: a checkpoint without
// anybody's state would be the newest.
func TestNoCheckpointWithoutReplicas(t *testing.T) {
	failed := func(number int) *slot {
		s := &slot{number: number, pipeline: &Pipeline{group: &group{failure: newFailure()}}}
		s.pipeline.group.failure.set(device.ErrLost)
		return s
	}
	r := &Replicas{failure: newFailure(), exchanges: newExchanges(), places: places{slots: []*slot{failed(0), failed(1)}}}
	r.filler = newFiller(r)
	v := copiedVariable{lostRead{}, replicas.Variable{Type: graph.T(graph.F32, 1), Replica: 1},
		&replicasSnapshot{position: &replicas.Position{}, live: r}}
	_, err := v.Wait()
	require.ErrorIs(t, err, device.ErrLost)
	assert.Empty(t, v.of.position.Without)
	r.filler.closing.Wait()
}

// A learning rate that is too large ends the run, and expels nobody.
func TestWeightsThatMoveTooFar(t *testing.T) {
	n := newPair(t)
	_, err := n.elastically(t, nil, nil, "optimizer.adamw.lr=9e5", "optimizer.lr=9e5", "lr.warmup=0", "pipeline.local_steps=1")
	assert.ErrorContains(t, err, "the weights have moved too far")
	assert.Empty(t, n.expels)
}

// Replicas that fail before their first exchange are started again later and later.
func TestFailuresInARow(t *testing.T) {
	r := &Replicas{failure: newFailure()}
	r.filler = newFiller(r)
	fails := func() {
		r.filler.end(&slot{pipeline: &Pipeline{group: &group{failure: newFailure()}}})
	}
	fails()
	fails()
	assert.Equal(t, 2, r.filler.failed)
	r.filler.took()
	fails()
	assert.Equal(t, 1, r.filler.failed)
	r.filler.closing.Wait()
}

// A replica is waited for while it has not sent what others have, or what one that joins needs, unless it waits for
// others itself. One that joins does.
func TestWhoIsWaitedFor(t *testing.T) {
	plan := schedule.Exchanges{Fragments: 1, Period: 3, Last: 9}
	a, b := &slot{pipeline: &Pipeline{}}, &slot{pipeline: &Pipeline{}, number: 1}
	r := &Replicas{exchanges: newExchanges(), owner: owner{outer: &replicas.Owner{Plan: plan}}, places: places{slots: []*slot{a, b}}}
	check := func(ofA, ofB bool) {
		t.Helper()
		assert.Equal(t, ofA, r.waitedFor(a))
		assert.Equal(t, ofB, r.waitedFor(b))
	}
	check(false, false)
	r.exchanges.arrivals[replicas.Exchange{Step: 3}] = map[*slot]*arrival{a: {complete: true}}
	check(false, true)
	r.exchanges.settling[6]++
	check(false, true)
	b.settles = true
	check(false, false)
	r.exchanges.arrivals, r.exchanges.taken[0] = map[replicas.Exchange]map[*slot]*arrival{}, 3
	check(true, false)
	b.settles, b.from = false, 6
	check(true, false)
	a.measures = true
	r.exchanges.taken[0] = 6
	check(true, false)
	a.measures = false
	check(false, false)
}

// unanswered is a Control of members that do not answer.
type unanswered struct{ Control }

func (unanswered) Request(ctx context.Context, _, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Replicas whose members do not answer are closed at the same time: a run waits for that no longer than for one.
func TestReplicasThatHangAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func() *slot {
			return &slot{pipeline: &Pipeline{group: &group{control: unanswered{}, members: []string{"a"}, failure: newFailure()}}}
		}
		joins := hangs()
		r := &Replicas{failure: newFailure(), owner: owner{outer: &replicas.Owner{}}}
		r.places = places{slots: []*slot{hangs()}, joining: joins}
		r.filler = newFiller(r)
		r.filler.filling.Go(func() {
			<-r.failure.happened
			r.filler.giveUp(joins)
		})
		began := time.Now()
		require.NoError(t, r.Close())
		assert.Equal(t, releaseTimeout, time.Since(began))
	})
}
