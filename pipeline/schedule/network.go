package schedule

import (
	"fmt"
	"math"
	"slices"
)

// Link is the connection from a stage to another, in the unit of time of the costs. A message occupies the sender of
// its machine for its transfer time, and arrives after the latency that follows.
type Link struct {
	Latency  float64 `json:"latency"`
	Transfer float64 `json:"transfer"`         // of a microbatch's activations, or of their gradient
	Copies   float64 `json:"copies,omitempty"` // of the gradient of tied embeddings, or of their weights
}

// Network describes stages on several machines. Each machine sends one message at a time: activations and their
// gradients first, then tied embeddings in pieces. Gradient norms are small: they have only a latency.
type Network struct {
	Machines []int    // by stage: the number of its machine, from 0
	Links    [][]Link // by sending and by receiving stage; those within a machine are not used
}

// Uniform is a network in which every stage has a machine of its own and all links are equal.
func Uniform(stages int, l Link) *Network {
	n := &Network{}
	for s := range stages {
		n.Machines, n.Links = append(n.Machines, s), append(n.Links, slices.Repeat([]Link{l}, stages))
	}
	return n
}

// pieces is the number of messages that tied embeddings are sent in.
const pieces = 64

func (n *Network) check(stages int) error {
	if n == nil {
		return nil
	}
	if len(n.Machines) != stages || len(n.Links) != stages {
		return fmt.Errorf("network: found machines of %d stages and links of %d, expected %d", len(n.Machines), len(n.Links), stages)
	}
	for from, links := range n.Links {
		if m := n.Machines[from]; m < 0 || m >= stages {
			return fmt.Errorf("network: stage %d: found machine %d, expected 0 to %d", from, m, stages-1)
		}
		if len(links) != stages {
			return fmt.Errorf("network: stage %d: found links to %d stages, expected %d", from, len(links), stages)
		}
		for to, l := range links {
			for _, v := range []float64{l.Latency, l.Transfer, l.Copies} {
				if !(v >= 0 && v <= maxCost) {
					return fmt.Errorf("network: link from stage %d to stage %d: found %v, expected numbers from 0 to %v", from, to, v,
						maxCost)
				}
			}
		}
	}
	return nil
}

// connects reports whether messages from a stage to another cross the network.
func (n *Network) connects(from, to int) bool { return n != nil && n.Machines[from] != n.Machines[to] }

// senders returns the idle senders of the machines.
func (n *Network) senders() []sender {
	if n == nil {
		return nil
	}
	return make([]sender, slices.Max(n.Machines)+1)
}

// sender sends the messages of a machine, one at a time.
type sender struct {
	free   float64
	urgent []outgoing // activations and gradients
	bulk   []outgoing // tied embeddings
}

// outgoing is a message, or the remaining pieces of a large message.
type outgoing struct {
	ready, transfer, latency float64
	pieces                   int // that remain; 0: the message is whole
	to                       int
	arrived                  func(time float64)
}

// post gives a message to the sender of a stage's machine.
func (sim *simulation) post(from, to int, o outgoing) {
	n, s := sim.costs.Network, &sim.senders[sim.costs.Network.Machines[from]]
	o.to, o.latency = to, n.Links[from][to].Latency
	if o.pieces > 0 {
		s.bulk = append(s.bulk, o)
	} else {
		s.urgent = append(s.urgent, o)
	}
}

// nextSender is the machine whose sender can begin a message first, and when: +Inf if all are idle.
func (sim *simulation) nextSender() (machine int, at float64) {
	at = math.Inf(1)
	for m, s := range sim.senders {
		for _, list := range [][]outgoing{s.urgent, s.bulk} {
			for _, o := range list {
				if t := max(s.free, o.ready); t < at {
					machine, at = m, t
				}
			}
		}
	}
	return machine, at
}

// depart sends a machine's next message, or piece of one, at a time at which one is ready.
func (sim *simulation) depart(machine int, at float64) {
	s := &sim.senders[machine]
	list := &s.urgent
	first := firstReady(*list, at)
	if first < 0 {
		list = &s.bulk
		first = firstReady(*list, at)
	}
	o := &(*list)[first]
	s.free = at + o.transfer
	if o.pieces--; o.pieces > 0 {
		return
	}
	o.arrived(s.free + o.latency)
	to := o.to
	*list = slices.Delete(*list, first, first+1)
	sim.refresh(to)
	sim.refreshExchange()
}

// firstReady is the index of the message that has waited longest at a time; −1 if none is ready.
func firstReady(list []outgoing, at float64) int {
	first := -1
	for i, o := range list {
		if o.ready <= at && (first < 0 || o.ready < list[first].ready) {
			first = i
		}
	}
	return first
}

// copied identifies the gradient or the weights of tied embeddings of a batch by the kind of its send.
type copied struct {
	send  Kind
	batch int
}

// copiesCross reports whether tied embeddings cross the network. Those of a replica are exchanged with its owner, which
// is not in the schedule.
func (sim *simulation) copiesCross(from, to int) bool {
	return !sim.copies.Replica && sim.costs.Network.connects(from, to)
}

// sendCopies sends the gradient or the weights of tied embeddings over the network, after the event that made them.
func (sim *simulation) sendCopies(send Kind, from, to int, e Event) {
	if !sim.copies.Tied || e.Stage != from || !sim.copiesCross(from, to) {
		return
	}
	at := copied{send, e.Action.Batch}
	sim.post(from, to, outgoing{ready: e.End, transfer: sim.costs.Network.Links[from][to].Copies / pieces, pieces: pieces,
		arrived: func(time float64) { sim.copied[at] = time }})
}

// copyArrival is when the gradient or the weights of tied embeddings of a batch arrive; NaN while that is not known.
func (sim *simulation) copyArrival(send Kind, from, to, batch int) float64 {
	if sim.copiesCross(from, to) {
		if at, known := sim.copied[copied{send, batch}]; known {
			return at
		}
		return unknown
	}
	made := sim.complete[from][batch]
	if send == SendWeights {
		made = sim.updated[from][batch]
	}
	return made + sim.exchange(from, to)
}
