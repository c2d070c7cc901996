package coordinator

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// elastically runs two replicas, on members a and b. Others of offers join. It returns the run's events and its error.
func (n *network) elastically(t *testing.T, offers <-chan []string, wrap func(*Replicas) train.Pipeline,
	overrides ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	remote, dir := n.elastic(offers, []string{"a"}, []string{"b"}), t.TempDir()
	o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: func(ctx context.Context,
		task train.RemoteTask) (train.Pipeline, error) {
		p, err := remote(ctx, task)
		if r, ok := p.(*Replicas); ok && r != nil && wrap != nil {
			return wrap(r), err
		}
		return p, err
	}}, Report: &runtest.Notes{}}
	_, err := train.Run(ctx, independent(t, dir, "run", overrides...), o)
	events, failed := os.ReadFile(dir + "/run/events.jsonl")
	if err == nil {
		require.NoError(t, failed)
		assert.NotContains(t, string(events), `"event":"restart"`)
	}
	return string(events), err
}

// newPair is a network with the members a and b.
func newPair(t *testing.T) *network {
	n := newNetwork()
	n.add(t, "a")
	n.add(t, "b")
	return n
}

// A fault that is not the loss of a member ends its replica alone. The replica is started again, on the same member.
func TestFaultsEndOneReplica(t *testing.T) {
	n, offers, again := newPair(t), make(chan []string, 1), make(chan struct{})
	once, begin := sync.OnceFunc(func() { offers <- []string{"b"} }), sync.OnceFunc(func() { close(again) })
	n.results = again
	n.forge = func(from, to string, h protocol.Header, m *transport.Message) {
		if _, ok := h.(protocol.Ended); ok && from == "a" {
			n.results = nil
		}
		if w, ok := h.(protocol.Write); ok && w.Begins && to == "b" && n.sent["protocol.Fault"] > 0 {
			begin() // it has been planned again
		}
		if _, ok := h.(protocol.Result); ok && from == "b" && n.sent["protocol.Fault"] == 0 {
			m.Header, m.Payload = protocol.Encode(protocol.Fault{Error: "out of registers"}), nil
			n.sent["protocol.Fault"]++
			once()
			go n.host.Receive(from, *m)
		}
	}
	events, err := n.elastically(t, offers, nil, "train.steps=40", "train.eval_every=20", "train.save_every=0")
	require.NoError(t, err)
	assert.Contains(t, events, "replica 1: b: out of registers; the others go on without it; it took part in no exchange")
	assert.Contains(t, events, "replica 1 begins after step ")
	assert.Empty(t, n.expels)
}

// A replica that cannot be planned, or loaded, costs the others nothing. If none can, that is the run's error.
func TestReplicasThatCannotBeOpened(t *testing.T) {
	for _, request := range []string{protocol.Plan, protocol.Load} {
		n := newPair(t)
		n.asked = func(_ context.Context, id, name string) error {
			if id == "b" && name == request {
				return errors.New("too little memory")
			}
			return nil
		}
		events, err := n.elastically(t, nil, nil)
		require.NoError(t, err)
		assert.Contains(t, events, "too little memory; the others go on without it")
		n = newPair(t)
		n.asked = func(_ context.Context, _, name string) error {
			if name == request {
				return errors.New("too little memory")
			}
			return nil
		}
		_, err = n.elastically(t, nil, nil)
		assert.ErrorContains(t, err, "too little memory")
	}
}

// Why a replica could not join is an event. One whose member does not answer does not keep others from joining.
func TestReplicasThatCannotJoin(t *testing.T) {
	n, offers := newPair(t), make(chan []string, 3)
	for _, id := range []string{"c", "d", "e"} {
		n.add(t, id)
		offers <- []string{id}
	}
	var failed []int
	n.asked = func(ctx context.Context, id, name string) error {
		switch {
		case id == "b" && name == protocol.Load, id == "c" && name == protocol.Plan:
			return errors.New("too little memory")
		case id == "d" && name == protocol.Load:
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
	wait := func(r *Replicas) train.Pipeline {
		r.options.Failed = func(replica int) { // of b, c and d
			failed = append(failed, replica)
			r.options.OpenTimeout = []time.Duration{time.Hour, 100 * time.Millisecond, time.Hour}[len(failed)-1]
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		t.Cleanup(cancel)
		return joinedBy{r, ctx, 6}
	}
	events, err := n.elastically(t, offers, wait, "train.steps=20", "train.eval_every=10", "train.save_every=0")
	require.NoError(t, err)
	assert.Contains(t, events, "replica 1 could not join on c: member c: too little memory")
	assert.Regexp(t, `replica 1 could not join on d: (d: plan: )?its members took more than 100ms to plan and load it`, events)
	assert.Contains(t, events, "replica 1 begins after step 10 on e")
	assert.Equal(t, []int{1, 1, 1}, failed)
}

// joinedBy is replicas that do not go on from a step before one has joined.
type joinedBy struct {
	*Replicas
	ctx  context.Context
	step int
}

// Train implements train.Pipeline.
func (j joinedBy) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	return j.Replicas.Train(stop, source, from, to, func(m engine.Measured) error {
		for m.Batch == j.step && !j.joinerWaits() && len(j.present()) < 2 && j.ctx.Err() == nil {
			runtime.Gosched()
		}
		return each(m)
	})
}

// failingSource is a source without some batch, for some of those who ask for it.
type failingSource struct {
	*Replicas
	batch int64
	fails func(asked int) bool
}

// Train implements train.Pipeline.
func (f failingSource) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	var mu sync.Mutex
	asked := 0
	return f.Replicas.Train(stop, sourceFunc(func(n int64) (engine.Batch, error) {
		mu.Lock()
		defer mu.Unlock()
		if n == f.batch {
			if asked++; f.fails(asked) {
				return nil, errors.New("no text")
			}
		}
		return source.Batch(n)
	}), from, to, each)
}

// Without a batch the run ends before it, in all replicas. If only one of them gets none, that one ends alone.
func TestReplicasWithoutABatch(t *testing.T) {
	source := func(fails func(asked int) bool) func(*Replicas) train.Pipeline {
		return func(r *Replicas) train.Pipeline { return failingSource{r, 2, fails} }
	}
	n := newPair(t)
	_, err := n.elastically(t, nil, source(func(int) bool { return true }), "train.eval_every=0", "train.save_every=0")
	assert.ErrorContains(t, err, "no text")
	assert.NotContains(t, err.Error(), "different batches")
	n = newPair(t)
	events, err := n.elastically(t, nil, source(func(asked int) bool { return asked == 2 }), "train.eval_every=0", "train.save_every=0")
	require.NoError(t, err)
	assert.Regexp(t, "replica [01]: no text; the others go on without it", events)
}
