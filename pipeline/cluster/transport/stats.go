package transport

import (
	"slices"
	"time"
)

// Link says how one class of messages to and from a peer fares in the present epoch.
type Link struct {
	Peer       string
	Class      Class
	Connected  bool
	Reconnects int64   // of the link, after its first connection
	Latency    Latency // of the link

	BytesSent, BytesReceived       int64         // of fragments, those sent again included
	MessagesSent, MessagesReceived int64         // acknowledged by the peer; arrived
	Unacknowledged                 int64         // bytes of payloads that the node still holds
	Wait                           time.Duration // of all acknowledged messages, from Send to their acknowledgment
	Resent                         int64         // messages sent again after a break, whole or in part
}

// Latency is what pings measure, one a second. All is 0 before the first answer.
type Latency struct {
	RoundTrip time.Duration // smoothed
	Minimum   time.Duration // round trip of the last 32 pings
	// ClockOffset is the peer's clock minus ours, from the ping with the least round trip. Its error is at most half
	// of that round trip.
	ClockOffset time.Duration
}

// roundTrips estimates the latency of a link and the difference of the two clocks.
type roundTrips struct {
	smoothed time.Duration
	samples  []sample // the last 32
}

type sample struct{ roundTrip, offset time.Duration }

// add takes a ping: when it was sent by our clock, when it was answered by the peer's, and how long it took.
func (r *roundTrips) add(sent, answered int64, took time.Duration) {
	s := sample{took, time.Duration(answered-sent) - took/2}
	if len(r.samples) == 0 {
		r.smoothed = s.roundTrip
	} else {
		r.smoothed += (s.roundTrip - r.smoothed) / 8
	}
	if len(r.samples) == 32 {
		r.samples = r.samples[1:]
	}
	r.samples = append(slices.Clip(r.samples), s)
}

// least is the sample with the least round trip.
func (r *roundTrips) least() sample {
	if len(r.samples) == 0 {
		return sample{}
	}
	return slices.MinFunc(r.samples, func(a, b sample) int { return int(a.roundTrip - b.roundTrip) })
}
