package partition

import (
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Network is the machines that the devices of a problem are in, and the links between them. All messages that a machine
// sends pass through it one after the other.
type Network struct {
	Machines []int    `json:"machines"` // by device: the number of its machine, from 0
	Links    [][]Link `json:"links"`    // by sending and by receiving device; those within a machine are not used
}

// Uniform is a network of n machines with a device each and links that are all alike.
func Uniform(n int, l Link) *Network {
	w := &Network{}
	for i := range n {
		w.Machines, w.Links = append(w.Machines, i), append(w.Links, slices.Repeat([]Link{l}, n))
	}
	return w
}

// transfer is the time that bytes take to leave over a link, without its latency.
func (l Link) transfer(bytes int64) float64 {
	if l.Bandwidth == 0 {
		return 0
	}
	return float64(bytes) / l.Bandwidth
}

// connects reports whether messages from a device to another cross the network.
func (w *Network) connects(from, to int) bool { return w != nil && w.Machines[from] != w.Machines[to] }

// alike reports whether two devices have the same links, so that they may be exchanged.
func (w *Network) alike(i, j int) bool {
	if w == nil || w.Machines[i] == w.Machines[j] {
		return true
	}
	for k := range w.Machines {
		if k == i || k == j {
			continue
		}
		if w.Machines[k] == w.Machines[i] || w.Machines[k] == w.Machines[j] || w.Links[i][k] != w.Links[j][k] ||
			w.Links[k][i] != w.Links[k][j] {
			return false
		}
	}
	return w.Links[i][j] == w.Links[j][i]
}

// Reordered is the network of the devices in another order.
func (w *Network) Reordered(order []int) *Network {
	if w == nil {
		return nil
	}
	r := &Network{}
	for _, from := range order {
		links := make([]Link, len(order))
		for i, to := range order {
			links[i] = w.Links[from][to]
		}
		r.Machines, r.Links = append(r.Machines, w.Machines[from]), append(r.Links, links)
	}
	return r
}

// OneReplica combines the networks of all replicas, whose devices follow one another, into the network of one replica:
// each link is the worst of all replicas. Stages are in one machine if they are in one in all replicas.
func (w *Network) OneReplica(stages int) *Network {
	if w == nil || len(w.Machines) == stages {
		return w
	}
	one := &Network{Machines: make([]int, stages)}
	for s := range stages {
		one.Machines[s] = s
		one.Links = append(one.Links, make([]Link, stages))
		for t := stages - 1; t >= 0; t-- {
			one.Links[s][t] = w.worst(s, t, stages)
			if t < s && !w.apart(s, t, stages) {
				one.Machines[s] = one.Machines[t]
			}
		}
	}
	return one
}

// apart reports whether two stages are in different machines in a replica.
func (w *Network) apart(s, t, stages int) bool {
	for first := 0; first < len(w.Machines); first += stages {
		if w.connects(first+s, first+t) {
			return true
		}
	}
	return false
}

// worst is the largest latency and the smallest bandwidth between two stages in all replicas.
func (w *Network) worst(s, t, stages int) (worst Link) {
	for first := 0; first < len(w.Machines); first += stages {
		if !w.connects(first+s, first+t) {
			continue
		}
		l := w.Links[first+s][first+t]
		worst.Latency = max(worst.Latency, l.Latency)
		if worst.Bandwidth == 0 || l.Bandwidth > 0 && l.Bandwidth < worst.Bandwidth {
			worst.Bandwidth = l.Bandwidth
		}
	}
	return worst
}

// message is the bytes on the wire of an activation, or of its gradient. They are as large at all boundaries.
func (c *costs) message() (bytes int64) {
	for u := range c.Units {
		bytes = max(bytes, c.Sent(u))
	}
	return bytes
}

// network is the problem's network for a simulation of a layout.
func (c *costs) network(l layout) *schedule.Network {
	if c.Network == nil {
		return nil
	}
	n := &schedule.Network{}
	message, shared := c.message(), c.Wire.Exchange.Size(c.Units[len(c.Units)-1].Shared/4)
	for _, from := range l.order {
		n.Machines = append(n.Machines, c.Network.Machines[from])
		var links []schedule.Link
		for _, to := range l.order {
			link := c.Network.Links[from][to]
			links = append(links, schedule.Link{Latency: link.Latency, Transfer: link.transfer(message), Copies: link.transfer(shared)})
		}
		n.Links = append(n.Links, links)
	}
	return n
}

// overLinks is the time of a microbatch in a full pipeline as far as the order of the devices decides it: what the
// busiest machine sends, or the time through all stages and back, divided by the microbatches in flight on the first
// stage. seconds is the time of all stages without links.
func (c *costs) overLinks(order []int, seconds float64) float64 {
	if c.Network == nil {
		return 0
	}
	message, sending, way := c.message(), map[int]float64{}, seconds
	for v := range c.Schedule.VirtualStages() - 1 {
		from, to := order[v%len(order)], order[(v+1)%len(order)]
		for _, ends := range [][2]int{{from, to}, {to, from}} {
			if c.Network.connects(ends[0], ends[1]) {
				l := c.Network.Links[ends[0]][ends[1]]
				sending[c.Network.Machines[ends[0]]] += l.transfer(message)
				way += l.Latency + l.transfer(message)
			}
		}
	}
	bound := way / float64(c.slots[0]*int64(c.Schedule.Chunks))
	for _, s := range sending {
		bound = max(bound, s)
	}
	return bound
}

// replicaSeconds is the time of bytes that replicas exchange over the slowest of a device's links.
func (c *costs) replicaSeconds(device int, bytes int64) (seconds float64) {
	if c.Network == nil || c.Replicas == 1 {
		return 0
	}
	for other, l := range c.Network.Links[device] {
		if c.Network.connects(device, other) {
			seconds = max(seconds, l.Seconds(c.Wire.Exchange.Size(bytes/4)))
		}
	}
	return seconds
}
