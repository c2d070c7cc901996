package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
)

// Links are what is known of the links between members, for as long as the coordinator runs. The zero value knows none.
type Links struct {
	mu        sync.Mutex
	known     map[pair]partition.Link
	unreached map[pair]time.Time // when two members that were to be neighbors did not reach each other, whichever was to send
}

// unreachableLasts is the time after which two members that had no connection are tried again, earlier if one of
// them joins or returns.
const unreachableLasts = 10 * time.Minute

// unordered is the pair of two members whichever sends.
func (p pair) unordered() pair { return pair{min(p.from, p.to), max(p.from, p.to)} }

// get returns the link of a pair, if it is measured: noLink, if the members are unreachable.
func (l *Links) get(p pair) (partition.Link, bool) {
	if l.unreachable(p.from, p.to) {
		return noLink, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	link, ok := l.known[p]
	return link, ok
}

func (l *Links) set(p pair, link partition.Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[pair]partition.Link{}
	}
	l.known[p] = link
	delete(l.unreached, p.unordered())
}

// setUnreachable notes that two members had no connection.
func (l *Links) setUnreachable(p pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.unreached, func(_ pair, at time.Time) bool { return time.Since(at) >= unreachableLasts })
	if l.unreached == nil {
		l.unreached = map[pair]time.Time{}
	}
	l.unreached[p.unordered()] = time.Now()
}

// forget drops which members a member does not reach; those of all, if member is empty.
func (l *Links) forget(member string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := func(p pair) bool { return member == "" || p.from == member || p.to == member }
	maps.DeleteFunc(l.unreached, func(p pair, _ time.Time) bool { return of(p) })
	maps.DeleteFunc(l.known, func(p pair, link partition.Link) bool { return link == noLink && of(p) })
}

// unreachable reports whether two members had no connection when one was tried, unreachableLasts ago at most.
func (l *Links) unreachable(a, b string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.unreached[pair{a, b}.unordered()]) < unreachableLasts
}

// from lists the measured links of a member.
func (l *Links) from(member string) (links []LinkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, link := range l.known {
		if p.from == member {
			links = append(links, LinkState{LinkUse: protocol.LinkUse{Peer: p.to}, Latency: link.Latency, Bandwidth: link.Bandwidth})
		}
	}
	slices.SortFunc(links, func(a, b LinkState) int { return strings.Compare(a.Peer, b.Peer) })
	return links
}

// What a probe may send, and how long it may take.
const (
	probeBytes   = 48 << 20
	probeSeconds = 1.5
)

// noLink stands for the link of two members that do not reach each other.
var noLink = partition.Link{Latency: 1000, Bandwidth: 1}

// measureLinks measures those links that are not known, one after the other.
func (p *Pipeline) measureLinks(ctx context.Context, o Options, report func(device, what string)) error {
	neighbors := p.placement.neighbors()
	known := func(x pair) bool {
		link, ok := o.Links.get(x)
		return ok && !(link == noLink && slices.Contains(neighbors, x))
	}
	missing := slices.DeleteFunc(p.placement.pairs(), known)
	if len(missing) == 0 {
		return nil
	}
	epoch := o.Epoch - 1
	err := p.group.each(ctx, func(ctx context.Context, member string) error {
		q := protocol.ConnectRequest{Epoch: epoch, Peers: slices.DeleteFunc(slices.Clone(o.peersOf(epoch, member)),
			func(peer protocol.Peer) bool { return peer.ID == identity.CoordinatorID })}
		return p.group.request(ctx, member, protocol.Connect, q, &struct{}{})
	})
	if err != nil {
		return err
	}
	for _, x := range missing {
		if known(x) { // its other direction is unreachable
			continue
		}
		report(x.from, "the link to "+x.to)
		link, err := p.probe(ctx, x)
		if err == nil {
			o.Links.set(x, link)
			continue
		}
		answered := errors.As(err, new(*control.RemoteError)) && p.group.failing() == nil
		unreachable := answered && errors.Is(err, transport.ErrUnreachable)
		neighbor := slices.Contains(neighbors, x)
		if unreachable && neighbor {
			o.Links.setUnreachable(x)
		} else if unreachable { // the order of the places does not need this link
			o.Links.set(x, noLink)
			o.Links.set(pair{x.to, x.from}, noLink)
		}
		if !answered || neighbor {
			return err
		}
	}
	return nil
}

// probe measures a link.
func (p *Pipeline) probe(ctx context.Context, x pair) (link partition.Link, err error) {
	q := protocol.ProbeRequest{To: x.to, Bytes: probeBytes, Seconds: probeSeconds}
	if err := p.group.request(ctx, x.from, protocol.Probe, q, &link); err != nil {
		return link, err
	}
	if !(link.Latency >= 0 && link.Latency < time.Hour.Seconds() && link.Bandwidth > 0) {
		return link, p.group.malformed(x.from, fmt.Errorf("a link of %v s and %v bytes a second to %s", link.Latency, link.Bandwidth, x.to))
	}
	return link, nil
}

// slower combines the larger latency and the smaller bandwidth of two links. A zero bandwidth is not known.
func slower(a, b partition.Link) partition.Link {
	a.Latency = max(a.Latency, b.Latency)
	if a.Bandwidth == 0 || b.Bandwidth > 0 && b.Bandwidth < a.Bandwidth {
		a.Bandwidth = b.Bandwidth
	}
	return a
}

// slowestLink combines the slowest of some links.
func slowestLink(pairs []pair, links *Links) (link partition.Link) {
	for _, x := range pairs {
		if known, ok := links.get(x); ok && known != noLink {
			link = slower(link, known)
		}
	}
	return link
}

// InBits formats a bandwidth in bytes a second.
func InBits(bytesPerSecond float64) string {
	bits := bytesPerSecond * 8
	if bits >= 1e9 {
		return fmt.Sprintf("%.3g Gbit/s", bits/1e9)
	}
	return fmt.Sprintf("%.3g Mbit/s", bits/1e6)
}
