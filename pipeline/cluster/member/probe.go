package member

import (
	"context"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
)

// connect connects to other members, without ranks, so that links can be measured.
func (m *Member) connect(_ context.Context, q protocol.ConnectRequest) (struct{}, error) {
	if err := m.end(); err != nil {
		return struct{}{}, err
	}
	return struct{}{}, m.node.Connect(q.Epoch, TransportPeers(q.Peers))
}

// TransportPeers returns peers as package transport connects to them.
func TransportPeers(all []protocol.Peer) (peers []transport.Peer) {
	for _, p := range all {
		peers = append(peers, transport.Peer{ID: p.ID, Addresses: p.Addresses})
	}
	return peers
}

const (
	probeMessage  = 1 << 20          // bytes of a message of a probe
	probeFirst    = 64 << 10         // bytes of the first round
	probeTimeout  = 20 * time.Second // for the connection, and for what was sent to arrive
	probeLatency  = 8                // empty messages, of which the fastest counts
	probeSettled  = 1.05             // gain of a round over the one before, below which the link has reached its speed
	probeDuration = 50 * time.Millisecond
)

// probe measures the link to another member: half of the round trip of an empty message, and the bandwidth of the
// fastest of several rounds, each twice as large as the one before. A new connection needs some rounds to reach its
// speed. The error wraps transport.ErrUnreachable if there was no connection.
func (m *Member) probe(ctx context.Context, q protocol.ProbeRequest) (partition.Link, error) {
	if err := q.Check(); err != nil {
		return partition.Link{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err := m.round(ctx, q.To, 0); err != nil { // connects
		return partition.Link{}, err
	}
	roundTrip := time.Duration(0)
	for i := range probeLatency {
		d, err := m.round(ctx, q.To, 0)
		if err != nil {
			return partition.Link{}, err
		}
		if i == 0 || d < roundTrip {
			roundTrip = d
		}
	}
	link := partition.Link{Latency: roundTrip.Seconds() / 2}
	until := time.Now().Add(time.Duration(q.Seconds * float64(time.Second)))
	for size := int64(probeFirst); q.Bytes >= size && time.Now().Before(until); size *= 2 {
		d, err := m.round(ctx, q.To, size)
		if err != nil {
			return link, err
		}
		q.Bytes -= size
		busy := max(d-roundTrip, time.Microsecond)
		rate := float64(size) / busy.Seconds()
		settled := rate < probeSettled*link.Bandwidth && busy > max(probeDuration, roundTrip)
		if link.Bandwidth = max(link.Bandwidth, rate); settled {
			break
		}
	}
	return link, nil
}

// round sends bytes to another member and returns the time until their arrival is acknowledged.
func (m *Member) round(ctx context.Context, to string, size int64) (time.Duration, error) {
	began := time.Now()
	header := protocol.Encode(protocol.Filler{})
	data := make([]byte, min(size, probeMessage))
	for {
		n := min(size, probeMessage)
		if err := m.node.Send(to, transport.Message{Class: transport.Hot, Header: header, Payload: [][]byte{data[:n]}}); err != nil {
			return 0, err
		}
		if size -= n; size == 0 {
			break
		}
	}
	err := m.node.Flush(ctx, to)
	return time.Since(began), err
}
