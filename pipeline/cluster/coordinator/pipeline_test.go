package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
)

const coordinatorID = "coordinator"

// network connects members and a coordinator in memory. Messages of a sender, receiver and class stay in order.
type network struct {
	mu       sync.Mutex
	epochs   map[string]uint64 // by member
	members  map[string]*member.Member
	host     running
	queues   map[string]chan func()
	cut      map[string]bool                                                // members that nothing reaches
	sent     map[string]int                                                 // by the type of header
	hold     chan struct{}                                                  // closed when variables may arrive; nil: they may
	results  chan struct{}                                                  // closed when results may arrive; nil: they may
	writes   chan struct{}                                                  // closed when variables may be written; nil: they may
	asked    func(ctx context.Context, id, name string) error               // may refuse a request of a member; nil: nothing does
	reported int64                                                          // bytes from each member
	forge    func(from, to string, h protocol.Header, m *transport.Message) // may change a message; nil: nothing does
	expels   []string                                                       // members
	latency  time.Duration                                                  // of a round trip, as far as links are measured
	far      map[string]time.Duration                                       // of a round trip between two members, as in "a b"; others have latency
	links    *Links                                                         // known before; nil: none are
	ahead    map[string]time.Duration                                       // by member: its clock minus that of the coordinator
	direct   bool                                                           // members of different replicas have links
	apart    map[string]bool                                                // pairs, as in "a b": the first does not reach the second
	timeout  time.Duration                                                  // of members added later
	pairs    map[string]uint64                                              // epochs of neighbors, as in "a b"
}

func newNetwork() *network {
	return &network{epochs: map[string]uint64{}, members: map[string]*member.Member{}, queues: map[string]chan func(){},
		cut: map[string]bool{}, pairs: map[string]uint64{}, apart: map[string]bool{},
		sent: map[string]int{}}
}

// add adds a member.
func (n *network) add(t *testing.T, id string) {
	m := member.New(member.Options{ID: id, Coordinator: coordinatorID, OpenDevice: testdevice.Open, ChangeTimeout: n.timeout, Note: t.Logf})
	m.Use(node{n, id})
	n.members[id] = m
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
}

// node is one member's end of the network.
type node struct {
	*network
	self string
}

func (n node) Connect(epoch uint64, peers []transport.Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.self != coordinatorID {
		n.epochs[n.self] = epoch
		return nil
	}
	for _, p := range peers {
		n.epochs[p.ID] = epoch
	}
	return nil
}

// Neighbors implements member.Node. The member reports which neighbors it reaches.
func (n node) Neighbors(all []transport.Neighbor) error {
	n.mu.Lock()
	maps.DeleteFunc(n.pairs, func(pair string, _ uint64) bool { return strings.HasPrefix(pair, n.self+" ") })
	links := []protocol.LinkUse{{Peer: coordinatorID}}
	for _, x := range all {
		pair := n.self + " " + x.ID
		n.pairs[pair] = x.Epoch
		links = append(links, protocol.LinkUse{Peer: x.ID, Connected: !n.apart[pair]})
	}
	n.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	return n.Send(coordinatorID, transport.Message{Class: transport.Bulk, Header: protocol.Encode(protocol.LinkReport{}),
		Payload: protocol.EncodeList(links)})
}

func (n node) Send(to string, m transport.Message) error {
	h, err := protocol.Decode(m.Header)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut[n.self] || n.cut[to] {
		return nil
	}
	n.sent[fmt.Sprintf("%T", h)]++
	m = n.inClock(m, h)
	m.Epoch = n.epochs[n.self]
	if n.self == coordinatorID {
		m.Epoch = n.epochs[to]
	} else if pair := n.pairs[n.self+" "+to]; pair != 0 {
		m.Epoch = pair
	}
	if n.forge != nil {
		n.forge(n.self, to, h, &m)
	}
	name := fmt.Sprint(n.self, " ", to, " ", m.Class)
	if n.queues[name] == nil {
		queue := make(chan func(), 1<<16)
		n.queues[name] = queue
		go func() {
			for f := range queue {
				f()
			}
		}()
	}
	results, writes := n.results, n.writes
	n.queues[name] <- func() {
		if _, ok := h.(protocol.Result); ok && results != nil {
			<-results
		}
		if _, ok := h.(protocol.Write); ok && writes != nil {
			<-writes
		}
		if _, ok := h.(protocol.Tensor); ok && n.hold != nil {
			<-n.hold
		}
		if to == coordinatorID {
			n.host.Receive(n.self, m)
			return
		}
		n.members[to].Receive(n.self, m)
	}
	return nil
}

// Links implements Node. Whatever members do, they report their links to the coordinator.
func (n node) Links() (all []transport.Link) {
	if n.self != coordinatorID {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reported += 200
	for id := range n.members {
		all = append(all, transport.Link{Peer: id, Class: transport.Bulk, BytesReceived: n.reported})
	}
	return all
}

func (n node) Flush(_ context.Context, to string) error {
	for _, pair := range []string{n.self + " " + to, to + " " + n.self} {
		if d, ok := n.far[pair]; ok {
			time.Sleep(d)
			return nil
		}
	}
	time.Sleep(n.latency)
	return nil
}

// Request implements Control.
func (n node) Request(ctx context.Context, id, name string, request []byte) ([]byte, error) {
	n.mu.Lock()
	m, cut := n.members[id], n.cut[id]
	n.mu.Unlock()
	if cut {
		return nil, errors.New("no reply")
	}
	if n.asked != nil {
		if err := n.asked(ctx, id, name); err != nil {
			kind := control.RemoteUser
			if errors.Is(err, transport.ErrUnreachable) {
				kind = control.RemoteUnreachable
			}
			return nil, &control.RemoteError{Member: id, Text: err.Error(), Kind: kind}
		}
	}
	reply, err := m.Request(ctx, name, request)
	if err != nil {
		return nil, &control.RemoteError{Member: id, Text: err.Error(), Kind: control.RemoteUser}
	}
	return reply, nil
}

// clockError is the error of measured clocks.
const clockError = 50 * time.Microsecond

// Clock implements Control.
func (n node) Clock(_ context.Context, id string) (transport.Clock, error) {
	return transport.Clock{Offset: n.ahead[id] + clockError/2, Error: clockError, Measured: time.Now()}, nil
}

// inClock changes the times of a message to those of the sender's clock.
func (n node) inClock(m transport.Message, h protocol.Header) transport.Message {
	ahead := n.ahead[n.self].Nanoseconds()
	switch h := h.(type) {
	case protocol.Stage:
		h.Taken += ahead
		m.Header = protocol.Encode(h)
	case protocol.Events:
		events, err := protocol.DecodeEvents(m.Payload)
		if err != nil {
			panic(err)
		}
		var all [][]byte
		for _, e := range events {
			if e.From != "" && time.Duration(e.Start-e.Sent) < time.Second && e.Sent < e.Start {
				e.Sent += ahead // from another rank of the member
			}
			e.Start += ahead
			all = append(all, e.Encode())
		}
		m.Payload = [][]byte{protocol.EncodeEvents(all)}
	}
	return m
}

// lose makes a member unreachable, and tells the others after a moment.
func (n *network) lose(id string) {
	n.mu.Lock()
	n.cut[id] = true
	n.mu.Unlock()
	n.host.Lost(id, errors.New("test"))
	for other, m := range n.members {
		if other != id {
			m.Lost(id, errors.New("test"))
		}
	}
}

// remote opens pipelines whose ranks are on members in turn.
func (n *network) remote(members ...string) train.Remote {
	epoch, links := uint64(0), n.links
	if n.latency > 0 {
		links = &Links{}
	}
	return func(ctx context.Context, t train.RemoteTask) (train.Pipeline, error) {
		epoch += 2
		o := Options{Control: node{n, coordinatorID}, Node: node{n, coordinatorID}, Epoch: epoch, Modelled: true, Links: links,
			Opened: func(p *Pipeline) { n.host = p }}
		for rank := range t.Config.Pipeline.Stages * t.Config.Pipeline.Replicas {
			o.Places = append(o.Places, protocol.Place{Member: members[rank%len(members)], Device: "cpu:0/1"})
		}
		p, err := Open(ctx, t, o)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

func run(t *testing.T, c config.Config, remote train.Remote) map[string]string {
	t.Helper()
	o := train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, Remote: remote}, Report: &runtest.Notes{}, Resume: true}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	res, err := train.Run(ctx, c, o)
	require.NoError(t, err)
	require.False(t, res.Interrupted)
	return traintest.Files(t, res.Checkpoint)
}

// Members give the weights and the optimizer's state of one process, bit for bit.
func TestMembersEqualOneProcess(t *testing.T) {
	type layout struct{ members, overrides []string }
	for _, x := range tier.Divide(t, []layout{
		{[]string{"a", "b"}, []string{"pipeline.stages=3", "pipeline.schedule=2bw", "train.microbatches=4",
			"pipeline.error_feedback=true", "model.tie_embeddings=true"}},
		{[]string{"a", "b"}, []string{"pipeline.stages=2", "pipeline.replicas=2", "train.microbatches=4", "pipeline.schedule=2bw"}},
		{[]string{"a", "b"}, []string{"pipeline.stages=2"}},
		{[]string{"a", "b"}, []string{"pipeline.stages=2", "model.tie_embeddings=true"}},
		{[]string{"a", "b", "c"}, []string{"pipeline.stages=3", "pipeline.schedule=2bw", "train.microbatches=4", "optimizer.name=muon"}},
		{[]string{"a", "b"}, []string{"pipeline.stages=2", "pipeline.schedule=2bw", "pipeline.wire=bf16", "train.precision=f16"}},
		{[]string{"a", "b"}, []string{"pipeline.stages=2", "pipeline.schedule=2bw",
			"train={batch_schedule: {0: 4, 3: 8}, microbatches: 2}"}},
		{[]string{"a", "b", "c"}, []string{"pipeline.stages=3", "data.document_mask=true", "data.separator=32"}},
	}, tier.First[layout](2)) {
		t.Run(fmt.Sprint(x.overrides), func(t *testing.T) {
			dir := t.TempDir()
			one := run(t, traintest.Demo(t, dir, append(x.overrides, "run.dir="+dir+"/one", "pipeline.devices=[cpu:0/1]")...), nil)
			n := newNetwork()
			for _, id := range x.members {
				n.add(t, id)
			}
			other := run(t, traintest.Demo(t, dir, append(x.overrides, "run.dir="+dir+"/other")...), n.remote(x.members...))
			for file := range one {
				assert.True(t, one[file] == other[file], file)
			}
			assert.NotZero(t, n.sent["protocol.Stage"])
			assert.Equal(t, traintest.Measurements(t, dir+"/one"), traintest.Measurements(t, dir+"/other"))
		})
	}
}

// Hooks that build the model and the loss run on members; those that change batches, rates and scalars on the
// coordinator.
func TestHooksOnMembers(t *testing.T) {
	t.Chdir("../../train") // the paths of example hooks are relative to it
	for name, demo := range map[string]func(dir string, overrides ...string) config.Config{
		"model": func(dir string, overrides ...string) config.Config {
			return traintest.HookModel(t, dir, traintest.GPT2(t), overrides...)
		},
		"batches and loss": func(dir string, overrides ...string) config.Config {
			return traintest.Demo(t, dir, append(overrides, traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch",
				traintest.Weigher(t)+", hook: token_weights", traintest.ScaledLoss(t)+", hook: build_loss"))...)
		},
	} {
		dir := t.TempDir()
		overrides := []string{"pipeline.stages=2", "pipeline.schedule=2bw"}
		one := run(t, demo(dir, append(overrides, "run.dir="+dir+"/one", "pipeline.devices=[cpu:0/1]")...), nil)
		n := newNetwork()
		n.add(t, "a")
		n.add(t, "b")
		other := run(t, demo(dir, append(overrides, "run.dir="+dir+"/other")...), n.remote("a", "b"))
		for file := range one {
			assert.True(t, one[file] == other[file], "%s: %s", file, name)
		}
	}
}

// slow delays the variables that members send until training has gone on.
type slow struct {
	*Pipeline
	hold  chan struct{} // closed when they may arrive
	steps int           // while they were held
}

func (s *slow) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	return s.Pipeline.Train(stop, source, from, to, func(m engine.Measured) error {
		if m.Batch == 3 {
			s.steps++
			close(s.hold)
		}
		return each(m)
	})
}

// A checkpoint is written while training goes on, and holds the variables of its step.
func TestCheckpointsAreWrittenWhileTrainingGoesOn(t *testing.T) {
	dir := t.TempDir()
	overrides := []string{"pipeline.stages=2", "pipeline.schedule=2bw", "train.keep=0", "train.eval_every=0"}
	run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/one", "pipeline.devices=[cpu:0/1]")...), nil)
	n := newNetwork()
	n.add(t, "a")
	n.add(t, "b")
	s := &slow{hold: make(chan struct{})}
	n.hold = s.hold
	open := n.remote("a", "b")
	run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/other")...),
		func(ctx context.Context, task train.RemoteTask) (train.Pipeline, error) {
			p, err := open(ctx, task)
			if err != nil {
				return nil, err
			}
			s.Pipeline = p.(*Pipeline)
			return s, nil
		})
	assert.Equal(t, 1, s.steps, "step 4 was trained before the checkpoint of step 2 could be written")
	for _, step := range []int{2, 4, 6} {
		assert.Equal(t, traintest.Files(t, traintest.StepDir(dir+"/one", step)), traintest.Files(t, traintest.StepDir(dir+"/other", step)))
	}
}

// A run that loses a member goes on from its checkpoint when the member is back, and gives the same bits.
func TestALostMemberComesBack(t *testing.T) {
	dir := t.TempDir()
	overrides := []string{"pipeline.stages=2", "pipeline.schedule=2bw"}
	one := run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/one", "pipeline.devices=[cpu:0/1]")...), nil)
	n := newNetwork()
	n.add(t, "a")
	n.add(t, "b")
	open := n.remote("a", "b")
	opened := 0
	remote := func(ctx context.Context, task train.RemoteTask) (train.Pipeline, error) {
		opened++
		if opened == 2 {
			n.mu.Lock()
			n.cut = map[string]bool{}
			n.mu.Unlock()
		}
		p, err := open(ctx, task)
		if err == nil && opened == 1 {
			return &faulty{Pipeline: p, lose: func() { n.lose("b") }}, nil
		}
		return p, err
	}
	other := run(t, traintest.Demo(t, dir, append(overrides, "run.dir="+dir+"/other")...), remote)
	assert.Equal(t, 2, opened)
	for file := range one {
		assert.True(t, one[file] == other[file], file)
	}
}

// faulty loses a member in its second segment of training.
type faulty struct {
	train.Pipeline
	lose func()
}

func (f *faulty) Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error) {
	return f.Pipeline.Train(stop, source, from, to, func(m engine.Measured) error {
		if m.Batch == 2 {
			f.lose()
		}
		return each(m)
	})
}

// blocking is a source that has no batch until it is released.
type blocking struct {
	asked   chan struct{} // has room for one: a batch is asked for
	release chan struct{} // closed when batches may come
}

func (b blocking) Prepare(int64) error {
	signal(b.asked)
	<-b.release
	return nil
}

func (b blocking) Batch(int64) (engine.Batch, error) { return engine.Batch{}, nil }

// A source that blocks, as a hook does that takes long, does not delay the loss of a member. Nothing is sent when it
// returns.
func TestABlockingSourceDoesNotDelayALoss(t *testing.T) {
	n := newNetwork()
	p := &Pipeline{group: &group{node: node{n, coordinatorID}, members: []string{"a"}, failure: newFailure()},
		placement: placement{stages: 1}, plan: plan{layout: &engine.Engine{}, microbatches: 1}}
	source := blocking{asked: make(chan struct{}, 1), release: make(chan struct{})}
	failed := make(chan error, 1)
	n.cut["a"] = true // it need not answer
	go func() {
		_, err := p.Train(context.Background(), source, 0, 5, func(engine.Measured) error { return nil })
		failed <- err
	}()
	<-source.asked
	p.Lost("a", errors.New("test"))
	select {
	case err := <-failed:
		require.ErrorIs(t, err, device.ErrLost)
	case <-time.After(time.Hour):
		require.Fail(t, "the loss is not noticed")
	}
	n.mu.Lock()
	n.cut = map[string]bool{}
	n.mu.Unlock()
	close(source.release)
	p.granting.Wait()
	assert.Empty(t, n.sent)
}

// What a member is asked is checked.
func TestMembersRefuseWrongRequests(t *testing.T) {
	n := newNetwork()
	n.add(t, "a")
	for name, request := range map[string]string{"dance": "{}", protocol.Plan: "[", protocol.Load: "{}",
		protocol.Measure: `{"config": "train: 7"}`} {
		_, err := n.members["a"].Request(context.Background(), name, []byte(request))
		assert.Error(t, err, name)
	}
	text, err := json.Marshal(protocol.PlanRequest{Task: protocol.Task{Config: string(traintest.Demo(t, t.TempDir()).YAML())}, Epoch: 1})
	require.NoError(t, err)
	_, err = n.members["a"].Request(context.Background(), protocol.Plan, text)
	assert.ErrorContains(t, err, "the plan places 0 ranks, expected 1")
}
