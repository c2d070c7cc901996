package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// replicas opens replicas that train on their own, each on some members in turn.
func (n *network) replicas(members ...[]string) train.Remote { return n.elastic(nil, members...) }

// elastic opens replicas that train on their own. Others of offers join.
func (n *network) elastic(offers <-chan []string, members ...[]string) train.Remote {
	var epoch atomic.Uint64
	offer := func(ctx context.Context, away []int) (int, error) {
		select {
		case members[away[0]] = <-offers:
			return away[0], nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return func(ctx context.Context, t train.RemoteTask) (train.Pipeline, error) {
		var direct *Direct
		if n.direct {
			direct = &Direct{Peer: func(member string) (protocol.Peer, bool) { return protocol.Peer{ID: member}, true },
				NextEpoch: func() uint64 { return epoch.Add(2) }, most: 1}
		}
		return OpenReplicas(ctx, ReplicaOptions{Task: t, Direct: direct, Offer: offer, Opened: func(r *Replicas) { n.host = r },
			Device: func() (device.Device, error) { return testdevice.Open("cpu:0/1") },
			Open: func(ctx context.Context, t train.RemoteTask, of *ofReplica, opened func(*Pipeline)) (*Pipeline, error) {
				if len(members[of.number]) == 0 {
					return nil, nil
				}
				o := Options{Control: node{n, coordinatorID}, Node: node{n, coordinatorID}, Epoch: epoch.Add(2), Modelled: true,
					Opened: opened, replica: of, Expel: n.expel}
				for rank := range t.Config.Pipeline.Stages {
					of := members[of.number]
					o.Places = append(o.Places, protocol.Place{Member: of[rank%len(of)], Device: "cpu:0/1"})
				}
				return Open(ctx, t, o)
			}})
	}
}

// expel notes that a member is expelled.
func (n *network) expel(id, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expels = append(n.expels, id)
}

// vanish makes a member unreachable.
func (n *network) vanish(id string) {
	n.mu.Lock()
	n.cut[id] = true
	n.mu.Unlock()
	n.host.Lost(id, errors.New("test"))
}

// independent is the config of a run of replicas that train on their own, in a folder of its own.
func independent(t *testing.T, dir, run string, overrides ...string) config.Config {
	return traintest.Demo(t, dir, append([]string{"train={steps: 9, batch_size: 12, microbatches: 12, eval_every: 4, save_every: 3}",
		"pipeline.replicas=2", "pipeline.local_steps=3", "run.dir=" + dir + "/" + run}, overrides...)...)
}

// Replicas on members give the weights, the state and the measurements of one process that runs them one after the
// other, bit for bit.
func TestReplicasOnMembersEqualOneProcess(t *testing.T) {
	all := []struct {
		members   [][]string
		overrides []string
	}{
		{[][]string{{"a"}, {"b"}}, nil},
		{[][]string{{"a"}, {"b"}, {"c"}}, []string{"pipeline.replicas=3", "pipeline.outer={wire: int4, late: 2}", "optimizer.name=muon"}},
		{[][]string{{"a", "b"}, {"c", "d"}}, []string{"pipeline.stages=2", "pipeline.schedule=2bw", "pipeline.outer={wire: int8, late: 1}",
			"model.tie_embeddings=false"}},
		{[][]string{{"a", "b"}, {"c", "d"}}, []string{"pipeline.stages=2", "model.tie_embeddings=true", "pipeline.schedule=2bw",
			"pipeline.wire_exchange=bf16", "pipeline.outer={wire: int4, late: 2}"}},
		{[][]string{{"a"}, {"b"}}, []string{"pipeline.local_steps=1"}},
		{[][]string{{"a"}, {"b"}}, []string{"pipeline.local_steps=8", "pipeline.outer={wire: int8, late: 8}"}},
		{[][]string{{"a"}, {"b"}}, []string{"pipeline.outer={wire: bf16, late: 1, correction: eager}"}},
		{[][]string{{"a"}, {"b"}}, []string{"pipeline.stages=2", "pipeline.schedule=2bw", "model.tie_embeddings=true",
			"pipeline.outer={wire: int4, late: 3, correction: plain}", "optimizer.name=muon"}},
		{[][]string{{"a", "b"}, {"c", "d"}, {"e", "f"}}, []string{"pipeline.replicas=3", "pipeline.stages=2",
			"pipeline.outer={wire: int2, late: 2}", "model.tie_embeddings=false"}},
		{[][]string{{"a", "b"}, {"c", "d"}}, []string{"pipeline.stages=2", "model.tie_embeddings=true",
			"pipeline.outer={wire: bf16, late: 1, correction: eager}"}},
		{[][]string{{"a", "b"}, {"c"}}, []string{"pipeline.stages=2", "model.tie_embeddings=true"}},
	}
	for i, x := range tier.Divide(t, all, tier.First[struct {
		members   [][]string
		overrides []string
	}](4)) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Log(x.overrides)
			dir := t.TempDir()
			one := run(t, independent(t, dir, "one", append(x.overrides, "pipeline.devices=[cpu:0/1]")...), nil)
			n := newNetwork()
			for _, group := range x.members {
				for _, id := range group {
					n.add(t, id)
				}
			}
			other := run(t, independent(t, dir, "other", x.overrides...), n.replicas(x.members...))
			for file := range one {
				assert.True(t, one[file] == other[file], file)
			}
			assert.NotZero(t, n.sent["protocol.Move"])
			tied := slices.Contains(x.overrides, "model.tie_embeddings=true")
			assert.Equal(t, tied && len(x.members[0]) > 1, n.sent["protocol.Copy"] > 0)
			assert.Equal(t, traintest.Measurements(t, dir+"/one"), traintest.Measurements(t, dir+"/other"))
		})
	}
}

// A run on members that is stopped between two exchanges goes on in one process, and the other way around.
func TestReplicasResumeOnMembersAndInOneProcess(t *testing.T) {
	overrides := []string{"pipeline.outer={wire: int4, late: 2}", "pipeline.local_steps=4"}
	dir := t.TempDir()
	whole := run(t, independent(t, dir, "whole", append(overrides, "pipeline.devices=[cpu:0/1]")...), nil)
	for _, first := range []bool{false, true} { // on members
		n := newNetwork()
		n.add(t, "a")
		n.add(t, "b")
		c := independent(t, dir, fmt.Sprint("halves-", first), append(overrides, "pipeline.devices=[cpu:0/1]")...)
		o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Report: &runtest.Notes{}, Resume: true, StopAfter: 5}
		if first {
			o.Devices.Remote = n.replicas([]string{"a"}, []string{"b"})
		}
		_, err := train.Run(t.Context(), c, o)
		require.NoError(t, err)
		remote := n.replicas([]string{"a"}, []string{"b"})
		if first {
			remote = nil
		}
		other := run(t, c, remote)
		for file := range whole {
			assert.True(t, whole[file] == other[file], file)
		}
	}
}

// evaluatesFirst is replicas that evaluate before they train, as a run does whose evaluation was interrupted.
type evaluatesFirst struct {
	*Replicas
	t       *testing.T
	n       *network
	trained bool
}

// Restore implements train's restoring. Nothing that it writes arrives before weights are lent.
func (e *evaluatesFirst) Restore(s replicas.Saved, at *replicas.Position) (int, error) {
	arrive := sync.OnceFunc(func() { close(e.n.writes) })
	e.n.writes = make(chan struct{}) // no message is under way
	e.n.asked = func(_ context.Context, _, name string) error {
		if name == protocol.Lend {
			go func() {
				for range 1000 {
					runtime.Gosched()
				}
				arrive()
			}()
		}
		return nil
	}
	return e.Replicas.Restore(s, at)
}

// Train implements train.Pipeline.
func (e *evaluatesFirst) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	if !e.trained {
		e.trained = true
		none := sourceFunc(func(int64) (engine.Batch, error) { return nil, errors.New("no batch") })
		err := e.Evaluate(stop, none, 1, func(engine.Measured) error { return nil })
		require.ErrorContains(e.t, err, "no batch")
	}
	return e.Replicas.Train(stop, source, from, to, each)
}

type sourceFunc func(int64) (engine.Batch, error)

func (f sourceFunc) Batch(n int64) (engine.Batch, error) { return f(n) }

// Weights are lent after those of the checkpoint have arrived, however late these are.
func TestLentWeightsAreThoseThatWereWritten(t *testing.T) {
	dir := t.TempDir()
	whole := run(t, independent(t, dir, "whole", "pipeline.devices=[cpu:0/1]"), nil)
	c := independent(t, dir, "halves", "pipeline.devices=[cpu:0/1]")
	_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Report: &runtest.Notes{},
		StopAfter: 5})
	require.NoError(t, err)
	n := newNetwork()
	n.add(t, "a")
	n.add(t, "b")
	remote := n.replicas([]string{"a"}, []string{"b"})
	other := run(t, c, func(ctx context.Context, task train.RemoteTask) (train.Pipeline, error) {
		p, err := remote(ctx, task)
		require.NoError(t, err)
		return &evaluatesFirst{Replicas: p.(*Replicas), t: t, n: n}, nil
	})
	for file := range whole {
		assert.True(t, whole[file] == other[file], file)
	}
}

// A replica whose member is lost costs the others nothing: they go on without a checkpoint, and the averages are over
// those that are left. The checkpoints that follow say who was away, and the run goes on with all of them.
func TestReplicasGoOnWithoutOneThatIsLost(t *testing.T) {
	dir, overrides := t.TempDir(), []string{"pipeline.replicas=3", "pipeline.outer={wire: int4, late: 2}", "train.save_every=0"}
	n := newNetwork()
	for _, id := range []string{"a", "b", "c"} {
		n.add(t, id)
	}
	report := &runtest.Notes{OnStep: func(p train.Progress) {
		if p.Step == 4 {
			n.vanish("b")
		}
	}}
	o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.replicas([]string{"a"}, []string{"b"},
		[]string{"c"})}, Report: report, StopAfter: 8}
	res, err := train.Run(t.Context(), independent(t, dir, "run", overrides...), o)
	require.NoError(t, err)
	assert.Equal(t, 8, res.Step)
	text, err := os.ReadFile(dir + "/run/events.jsonl")
	require.NoError(t, err)
	assert.Contains(t, string(text), `"event":"replica","text":"replica 1: b: test (`)
	assert.NotContains(t, string(text), `"event":"restart"`)
	records, err := metrics.Read(dir + "/run/metrics.jsonl")
	require.NoError(t, err)
	assert.Len(t, records, 8, "no step is done twice")
	assert.Contains(t, records[0].Values, "replicas.1/loss")
	assert.NotContains(t, records[7].Values, "replicas.1/loss")
	assert.Contains(t, records[7].Values, "replicas.2/loss")
	notes := &runtest.Notes{}
	o = train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Report: notes, Resume: true}
	res, err = train.Run(t.Context(), independent(t, dir, "run", append(overrides, "pipeline.devices=[cpu:0/1]")...), o)
	require.NoError(t, err)
	assert.Equal(t, 9, res.Step)
	assert.Contains(t, strings.Join(notes.Text, "\n"), "1 of 3 replicas have no state in the checkpoint")
}

// tensorsOf reads all tensors of a checkpoint's state.
func tensorsOf(t *testing.T, res train.Result) map[string][]float32 {
	t.Helper()
	c, _, err := checkpoint.Latest(res.Dir)
	require.NoError(t, err)
	r, err := c.Optimizer()
	require.NoError(t, err)
	defer r.Close()
	all := map[string][]float32{}
	for _, x := range r.Tensors() {
		if x.DType == "F32" {
			all[x.Name], err = r.Float32(x.Name)
			require.NoError(t, err)
		}
	}
	return all
}

// A member that sends a move that no honest one sends is expelled, and the others go on.
func TestForgedMovesExpel(t *testing.T) {
	floats := func(x float32) func(*transport.Message) {
		return func(m *transport.Message) {
			content := slices.Repeat([]float32{x}, len(m.Payload[0])/4)
			m.Payload = [][]byte{exec.F32Bytes(content)}
		}
	}
	header := func(h protocol.Move) func(*transport.Message) {
		return func(m *transport.Message) { m.Header = protocol.Encode(h) }
	}
	all := map[string]func(*transport.Message){
		"values of embed: found NaN, expected at most":                   floats(float32(math.NaN())),
		"found +Inf, expected at most":                                   floats(float32(math.Inf(1))),
		"found 1e+09, expected at most":                                  floats(1e9),
		"it has moved embed much farther than the other":                 floats(3e4),
		"has 4 bytes, expected":                                          func(m *transport.Message) { m.Payload = [][]byte{{1, 2, 3, 4}} },
		"in 0 tensors, expected 1":                                       func(m *transport.Message) { m.Payload = nil },
		"fragment 99 after step 1: it is not sent then":                  header(protocol.Move{Step: 1, Fragment: 99}),
		"fragment -1 after step 1: it is not sent then":                  header(protocol.Move{Step: 1, Fragment: -1}),
		"fragment 0 after step -3: it was exchanged":                     header(protocol.Move{Step: -3}),
		"fragment 0 after step 4: the exchange after step 1 comes first": header(protocol.Move{Step: 4}),
	}
	texts := slices.Sorted(maps.Keys(all))
	for _, text := range tier.Divide(t, texts, tier.First[string](3)) {
		n, dir := newNetwork(), t.TempDir()
		for _, id := range []string{"a", "b", "c"} {
			n.add(t, id)
		}
		n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
			if _, ok := h.(protocol.Move); ok && from == "b" {
				all[text](m)
			}
		}
		o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.replicas([]string{"a"}, []string{"b"},
			[]string{"c"})}, Report: &runtest.Notes{}}
		_, err := train.Run(t.Context(), independent(t, dir, "run", "pipeline.replicas=3"), o)
		require.NoError(t, err)
		events, err := os.ReadFile(dir + "/run/events.jsonl")
		require.NoError(t, err)
		assert.Contains(t, string(events), text)
		assert.Contains(t, string(events), "it took part in no exchange")
		assert.NotContains(t, string(events), `"event":"restart"`)
		assert.Contains(t, n.expels, "b")
		assert.NotContains(t, n.expels, "a")
	}
}

// What is held of a replica's moves is bounded: it may send one of each fragment, once, when its step has begun.
func TestMovesAreHeldWithinBounds(t *testing.T) {
	for text, forge := range map[string]func(n *network, m *transport.Message){
		"it was exchanged before|a second time": func(n *network, m *transport.Message) { go n.host.Receive("b", *m) },
		"after step 40: only [123]?[0-9] steps have begun": func(n *network, m *transport.Message) {
			r := n.host.(*Replicas)
			m.Header = protocol.Encode(protocol.Move{Step: 40, Fragment: r.owner.outer.Plan.Fragments - 1})
		},
	} {
		n, dir := newNetwork(), t.TempDir()
		n.add(t, "a")
		n.add(t, "b")
		n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
			if _, ok := h.(protocol.Move); ok && from == "b" {
				forge(n, m)
			}
		}
		o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.replicas([]string{"a"}, []string{"b"})},
			Report: &runtest.Notes{}}
		_, err := train.Run(t.Context(), independent(t, dir, "run", "pipeline.local_steps=40", "train.steps=42",
			"train.eval_every=0", "train.save_every=0"), o)
		require.NoError(t, err)
		events, err := os.ReadFile(dir + "/run/events.jsonl")
		require.NoError(t, err)
		assert.Regexp(t, text, string(events))
		assert.Equal(t, []string{"b"}, n.expels)
	}
}

// What a replica that is lost has sent a part of is forgotten; what it has sent whole counts, and is its own: another
// that takes its number sends for itself.
func TestExchangesAreOfReplicasNotOfNumbers(t *testing.T) {
	x := replicas.Exchange{Step: 3}
	before, after, other := &slot{number: 1}, &slot{number: 1}, &slot{}
	r := &Replicas{exchanges: newExchanges(), places: places{slots: []*slot{other, after}}}
	arrived := map[*slot]*arrival{before: {message: &replicas.Message{}}, other: {message: &replicas.Message{}, complete: true}}
	r.exchanges.arrivals[x] = arrived
	assert.Nil(t, r.complete(x, arrived))
	r.exchanges.forget(before, false)
	assert.Nil(t, r.complete(x, arrived), "the other replica 1 is yet to send")
	expelled := &slot{number: 2}
	arrived[after] = &arrival{message: &replicas.Message{}, complete: true}
	arrived[expelled] = &arrival{message: &replicas.Message{}, complete: true}
	assert.Len(t, r.complete(x, arrived), 3)
	r.exchanges.forget(expelled, true)
	all := r.complete(x, arrived)
	require.Len(t, all, 2)
	assert.Same(t, other, all[0].slot)
	assert.Same(t, after, all[1].slot)
	got, all := r.due()
	assert.Equal(t, x, got)
	assert.Len(t, all, 2)
	r.places.slots = []*slot{{from: 3}, {number: 1, from: 3}} // both were lost meanwhile
	assert.True(t, r.comes(x), "its outer step is being taken")
	r.exchanges.stepped[0] = 3
	assert.False(t, r.comes(x))
}

// A replica that is lost and one that takes its number are two in a round.
func TestRoundOfReplicasWithOneNumber(t *testing.T) {
	r := newRound(t.Context(), nil, 5, 9)
	first, lost := r.enter(&slot{}, 5), r.enter(&slot{number: 1}, 5)
	joins := r.enter(&slot{number: 1}, 6)
	require.NoError(t, lost.add(engine.Measured{Batch: 5}))
	require.NoError(t, first.add(engine.Measured{Batch: 5}))
	require.NoError(t, first.add(engine.Measured{Batch: 6}))
	complete, _ := r.take()
	require.Len(t, complete, 1)
	assert.Len(t, complete[0].Replicas, 2)
	require.NoError(t, joins.add(engine.Measured{Batch: 6}))
	lost.leave(5, errors.New("lost"), true)
	complete, over := r.take()
	require.Len(t, complete, 1)
	assert.Len(t, complete[0].Replicas, 2)
	assert.False(t, over)
	assert.False(t, r.waitsFor(joins.slot))
	first.leave(7, nil, false)
	assert.True(t, r.waitsFor(joins.slot), "the other one has ended")
	assert.Nil(t, r.enter(&slot{number: 2}, 7))
	joins.leave(7, nil, false)
	_, over = r.take()
	assert.True(t, over)
	reached, err := r.end(5)
	require.NoError(t, err)
	assert.Equal(t, 7, reached)
}

// A replica that answers and makes no progress is given up after pipeline.watchdog.
func TestReplicasGoOnWithoutOneThatHangs(t *testing.T) {
	tier.Rest(t)
	silent := func(h protocol.Header) []bool {
		_, move := h.(protocol.Move)
		_, ended := h.(protocol.Ended)
		return []bool{move, ended}
	}
	for kind := range silent(nil) { // others wait for an exchange, or for the end of a round
		n, dir := newNetwork(), t.TempDir()
		n.add(t, "a")
		n.add(t, "b")
		n.forge = func(from, _ string, h protocol.Header, m *transport.Message) {
			if from == "b" && silent(h)[kind] {
				swallow(m)
			}
		}
		o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: n.replicas([]string{"a"}, []string{"b"})},
			Report: &runtest.Notes{}}
		_, err := train.Run(t.Context(), independent(t, dir, "run", "pipeline.watchdog=1s"), o)
		require.NoError(t, err)
		events, err := os.ReadFile(dir + "/run/events.jsonl")
		require.NoError(t, err)
		assert.Contains(t, string(events), "replica 1: no progress for 1s (pipeline.watchdog)")
	}
}

// Once the replicas are closed, a replica that ends is not lost: Close closes its pipeline, and no member has failed.
func TestClosedReplicasLoseNone(t *testing.T) {
	s := &slot{waits: true}
	r := &Replicas{failure: newFailure(), places: places{slots: make([]*slot, 1), joining: s}}
	r.filler = newFiller(r)
	r.failure.set(device.ErrClosed)
	r.lose(s, device.ErrClosed)
	assert.Same(t, s, r.places.joining)
	assert.Empty(t, r.filler.ending)
	assert.Zero(t, r.filler.failed)
}
