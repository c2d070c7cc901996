package coordinator

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// What a member says of a segment is checked. Late, repeated and foreign messages end the pipeline, and expel the
// member.
func TestSegmentsCheckMessages(t *testing.T) {
	result := func(batch, microbatch int, losses ...float32) transport.Message {
		h, payload := protocol.EncodeResult(1, engine.Result{Batch: batch, Microbatch: microbatch, Losses: losses})
		return transport.Message{Header: protocol.Encode(h), Payload: payload}
	}
	routing := func(virtualStage, values int) transport.Message {
		h, payload := protocol.EncodeResult(1, engine.Result{Batch: 3, Routing: make([]float32, values), VirtualStage: virtualStage})
		return transport.Message{Header: protocol.Encode(h), Payload: payload}
	}
	ended := func(limit int) transport.Message {
		return transport.Message{Header: protocol.Encode(protocol.Ended{Segment: 1, Limit: limit})}
	}
	type sent struct {
		from string
		transport.Message
	}
	for name, x := range map[string]struct {
		messages []sent
		expect   string
	}{
		"the end twice":                {[]sent{{"a", ended(5)}, {"b", ended(5)}, {"b", ended(5)}}, "a second time"},
		"an end that was not granted":  {[]sent{{"a", ended(6)}}, "expected 3 to 5"},
		"losses twice":                 {[]sent{{"b", result(3, 0, 1)}, {"b", result(3, 0, 1)}}, "a second time"},
		"routing twice":                {[]sent{{"b", routing(1, 8)}, {"b", routing(1, 8)}}, "a second time"},
		"routing of another rank":      {[]sent{{"a", routing(1, 8)}}, "rank 1, which is on b"},
		"routing of a dense stage":     {[]sent{{"a", routing(0, 8)}}, "virtual stage 0 of batch 3: expected none"},
		"routing of no stage":          {[]sent{{"b", routing(-1, 8)}}, "virtual stage -1"},
		"too little routing":           {[]sent{{"b", routing(1, 7)}}, "7 values, expected 8"},
		"an update twice":              {[]sent{{"a", result(3, 0)}, {"a", result(3, 0)}}, "a second one"},
		"losses of another rank":       {[]sent{{"a", result(3, 0, 1)}}, "rank 1, which is on b"},
		"an update of another rank":    {[]sent{{"b", result(3, 0)}}, "rank 0, which is on a"},
		"too many losses":              {[]sent{{"b", result(3, 0, 1, 2)}}, "2 losses, expected 1"},
		"a batch that was not granted": {[]sent{{"b", result(5, 0, 1)}}, "expected batches 3 to 4"},
		"a microbatch that is none":    {[]sent{{"b", result(3, math.MaxInt, 1)}}, "of 2 microbatches"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Pipeline{group: &group{members: []string{"a", "b"}, failure: newFailure()},
				placement: placement{[]protocol.Place{{Member: "a"}, {Member: "b"}}, 2}}
			expelled := ""
			p.group.expel = func(id, _ string) { expelled = id }
			p.segment = &segment{pipeline: p, number: 1, work: work{from: 3, to: 9, microbatches: 2, losses: 1}, granted: 5, finished: 3,
				ended: make(chan struct{}), measured: make(chan struct{}, 1), changed: make(chan struct{}, 1),
				collector: engine.NewCollector(3, 2, true, []engine.Router{{VirtualStage: 1, Layers: []int{2}, Values: 8}}),
				limits:    map[string]int{}}
			for i, m := range x.messages {
				assert.NoError(t, p.group.failing(), i)
				p.Receive(m.from, m.Message)
			}
			require.ErrorContains(t, p.group.failing(), x.expect)
			require.ErrorIs(t, p.group.failing(), device.ErrLost)
			from := x.messages[len(x.messages)-1].from
			assert.ErrorContains(t, p.group.failing(), from+": ")
			assert.Equal(t, from, expelled)
		})
	}
}

// A fault is that of the member that reports it, unless it reports a malformed message of another member.
func TestFaults(t *testing.T) {
	for name, x := range map[string]struct {
		fault          protocol.Fault
		expelled, text string
		lost           bool
	}{
		"a defect":                 {protocol.Fault{Error: "defect"}, "", "a: defect", false},
		"a lost device":            {protocol.Fault{Error: "no device", Lost: true}, "", "a: no device", true},
		"a malformed message":      {protocol.Fault{Error: "from b: nonsense", Malformed: "b"}, "b", "b: a: from b: nonsense", true},
		"of the coordinator":       {protocol.Fault{Error: "nonsense", Malformed: "coordinator"}, "", "a: nonsense", false},
		"of the member itself":     {protocol.Fault{Error: "nonsense", Malformed: "a"}, "", "a: nonsense", false},
		"of a member that is none": {protocol.Fault{Error: "nonsense", Malformed: "x"}, "", "a: nonsense", false},
	} {
		t.Run(name, func(t *testing.T) {
			expelled := ""
			p := &Pipeline{group: &group{members: []string{"a", "b"}, failure: newFailure(),
				expel: func(id, _ string) { expelled = id }}}
			p.Receive("a", transport.Message{Header: protocol.Encode(x.fault)})
			require.ErrorContains(t, p.group.failing(), x.text)
			assert.Equal(t, x.lost, errors.Is(p.group.failing(), device.ErrLost))
			assert.Equal(t, x.expelled, expelled)
		})
	}
}

// A member without ranks is expelled for what it sends, and ends neither the pipeline nor another member.
func TestSparesCannotEndThePipeline(t *testing.T) {
	for name, m := range map[string]transport.Message{
		"a fault":                            {Header: protocol.Encode(protocol.Fault{Error: "defect"})},
		"a malformed message of another":     {Header: protocol.Encode(protocol.Fault{Error: "nonsense", Malformed: "b"})},
		"the end of a segment":               {Header: protocol.Encode(protocol.Ended{Segment: 1, Limit: 5})},
		"a message that is none":             {Header: []byte("nonsense")},
		"a message that only members expect": {Header: protocol.Encode(protocol.Begin{Segment: 1})},
	} {
		t.Run(name, func(t *testing.T) {
			var expelled []string
			expel := func(id, _ string) { expelled = append(expelled, id) }
			p := &Pipeline{group: &group{members: []string{"a", "b"}, failure: newFailure(), expel: expel}}
			p.Receive("spare", m)
			require.NoError(t, p.group.failing())
			assert.Equal(t, []string{"spare"}, expelled)
			m.Epoch = 1 // another one
			p.Receive("spare", m)
			assert.Len(t, expelled, 1)
		})
	}
}

// Members that end without having sent all results are not believed.
func TestSegmentsEndWithAllResults(t *testing.T) {
	p := &Pipeline{group: &group{members: []string{"a", "b"}}}
	s := &segment{pipeline: p, number: 1, finished: 4, limits: map[string]int{"a": 4, "b": 4}}
	end, err := s.end()
	require.NoError(t, err)
	assert.Equal(t, 4, end)
	s.limits["b"] = 5
	_, err = s.end()
	assert.ErrorContains(t, err, "b: segment 1: found its end at batch 5, expected 4")
}

// A variable is taken from its owner, once, and with its size.
func TestVariablesAreChecked(t *testing.T) {
	v := protocol.Variable{Name: "w"}
	message := func(v protocol.Variable, number uint64, payload ...[]byte) transport.Message {
		return transport.Message{Header: protocol.Encode(protocol.Tensor{Number: number, Variable: v}), Payload: payload}
	}
	good := message(v, 1, make([]byte, 8))
	for name, x := range map[string]struct {
		from   string
		m      transport.Message
		expect string
	}{
		"another read":     {"a", message(v, 2, make([]byte, 8)), "nothing of that was asked for"},
		"another variable": {"a", message(protocol.Variable{Name: "x"}, 1, make([]byte, 8)), "was not asked for"},
		"another member":   {"b", good, "was not asked for"},
		"another size":     {"a", message(v, 1, make([]byte, 4)), "expected one of 8 bytes"},
		"no tensor":        {"a", message(v, 1), "found 0 tensors"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reads{number: 1, expected: map[protocol.Variable]owned{v: {v, "a", 8}}, arrived: map[protocol.Variable][]byte{},
				changed: make(chan struct{})}
			group := &group{members: []string{"a", "b"}, failure: newFailure()}
			p := &Pipeline{group: group, variables: variables{pending: map[uint64]*reads{1: r}}}
			p.Receive(x.from, x.m)
			assert.ErrorContains(t, p.group.failing(), x.expect)

			r.expected[protocol.Variable{Name: "later"}] = owned{}
			group.failure = newFailure()
			p = &Pipeline{group: group, variables: variables{pending: map[uint64]*reads{1: r}}}
			p.Receive("a", good)
			require.NoError(t, p.group.failing())
			data, err := (&pendingVariable{p, r, v}).Wait()
			require.NoError(t, err)
			assert.Len(t, data, 8)
			p.Receive("a", good)
			assert.ErrorContains(t, p.group.failing(), "has arrived before")
		})
	}
}
