package coordinator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
)

// Reports of links become values of metrics.jsonl and the state of members.
func TestLinkReports(t *testing.T) {
	h := &Host{}
	h.roster = &roster{members: []*hostMember{{MemberState: MemberState{ID: "a", State: Idle}},
		{MemberState: MemberState{ID: "b", State: Idle}}}, links: h.linkStates}
	announced := make(chan []MemberState, 2)
	h.announcements = announce(h.Members, func(all []MemberState) { announced <- all })
	defer h.announcements.close()
	p := &Pipeline{group: &group{members: []string{"a", "b"}, epoch: 1, failure: newFailure()}}
	h.use(p)
	h.links.set(pair{"a", "b"}, partition.Link{Latency: 0.01, Bandwidth: 1e6})
	h.links.set(pair{"a", "c"}, partition.Link{Latency: 0.02, Bandwidth: 2e6})
	use := protocol.LinkUse{Peer: "b", Sent: 7, Wait: 0.5, Messages: 2, Resent: 3}
	send := func(from string, uses ...protocol.LinkUse) {
		p.Receive(from, transport.Message{Epoch: 1, Header: protocol.Encode(protocol.LinkReport{}), Payload: protocol.EncodeList(uses)})
	}
	send("a", protocol.LinkUse{Peer: "coordinator", Received: 5}, use)
	require.NoError(t, p.group.failing())
	var values []string
	for _, v := range p.LinkValues() {
		values = append(values, fmt.Sprint(v.Name, "=", v.Value))
	}
	assert.Equal(t, "link/a/coordinator/bytes=0 link/a/coordinator/wait_s=0 link/a/coordinator/resent=0 link/coordinator/a/bytes=5 "+
		"link/a/b/bytes=7 link/a/b/wait_s=0.5 link/a/b/resent=3", strings.Join(values, " "))
	members := <-announced
	require.Len(t, members, 2)
	assert.Equal(t, []LinkState{{LinkUse: protocol.LinkUse{Peer: "coordinator", Received: 5}},
		{LinkUse: use, Latency: 0.01, Bandwidth: 1e6}}, members[0].Links, "c has left")
	assert.Equal(t, 0.25, use.MeanWait())

	send("a", protocol.LinkUse{Peer: "stranger"})
	assert.ErrorContains(t, p.group.failing(), `a: a report of a link to "stranger", which is not a member`)
}

func TestLinkReportsAreBounded(t *testing.T) {
	_, err := protocol.DecodeLinks(protocol.EncodeList(make([]protocol.LinkUse, 4)), 3)
	assert.ErrorContains(t, err, "a report of 4 links, expected at most 3")
	_, err = protocol.DecodeLinks([][]byte{[]byte("{")}, 3)
	assert.ErrorContains(t, err, "a report of links")
	_, err = protocol.DecodeLinks(nil, 3)
	assert.ErrorContains(t, err, "0 tensors, expected 1")
	for _, q := range []protocol.ProbeRequest{{}, {Bytes: 1}, {Bytes: 1 << 40, Seconds: 1}, {Bytes: 1, Seconds: 1e9}} {
		assert.Error(t, q.Check())
	}
	assert.NoError(t, protocol.ProbeRequest{Bytes: 1, Seconds: 1}.Check())
}
