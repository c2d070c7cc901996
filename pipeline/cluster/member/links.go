package member

import (
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// linksEvery is the time between two reports of links.
const linksEvery = 2 * time.Second

// reportLinks reports to the coordinator what the links of this member carry, until the epoch is over.
func (e *epoch) reportLinks() {
	tick := time.NewTicker(linksEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if links := usesOf(e.member.node.Links()); len(links) > 0 {
				e.send(e.member.options.Coordinator, transport.Bulk, protocol.LinkReport{}, protocol.EncodeList(links))
			}
		case <-e.lifetime.over:
			return
		}
	}
}

// usesOf adds up the classes of each peer, which follow each other.
func usesOf(all []transport.Link) (uses []protocol.LinkUse) {
	for _, l := range all {
		if n := len(uses); n == 0 || uses[n-1].Peer != l.Peer {
			uses = append(uses, protocol.LinkUse{Peer: l.Peer, Connected: l.Connected, RoundTrip: l.RoundTrip.Seconds(),
				Reconnects: l.Reconnects})
		}
		u := &uses[len(uses)-1]
		u.Sent += l.BytesSent
		u.Received += l.BytesReceived
		u.Waiting += l.Unacknowledged
		u.Messages += l.MessagesSent
		u.Wait += l.Wait.Seconds()
		u.Resent += l.Resent
	}
	return uses
}
