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
	Reconnects int64         // of the link, after its first connection
	RoundTrip  time.Duration // of the link, by pings, smoothed; 0 before the first answer

	BytesSent, BytesReceived       int64         // of fragments, those sent again included
	MessagesSent, MessagesReceived int64         // acknowledged by the peer; arrived
	Unacknowledged                 int64         // bytes of payloads that the node still holds
	Wait                           time.Duration // of all acknowledged messages, from Send to their acknowledgment
	Resent                         int64         // messages sent again after a break, whole or in part
}

// Clock is the difference between the clocks of two computers.
type Clock struct {
	Offset   time.Duration // the peer's clock minus this process's
	Error    time.Duration // the true offset is at most this far from Offset: half the round trip, the least of several
	Measured time.Time     // by the clock of this process
}

// roundTrips estimates the latency of a link and the difference of the two clocks.
type roundTrips struct {
	smoothed time.Duration
	samples  []sample // the last clockPings
}

// sample is what a ping has measured.
type sample struct {
	roundTrip, offset time.Duration
	measured          int64 // Unix nanoseconds
}

// sampleOf is what an answered ping has measured. The peer has answered between sent and sent + took, by the clock of
// this process. In the middle the error is at most half of what the ping took.
func sampleOf(pong ping, took time.Duration) sample {
	return sample{took, time.Duration(pong.answered-pong.sent) - took/2, pong.sent + int64(took)}
}

// clock is the best of the newest measurements. It reports whether there is one.
func (r *roundTrips) clock() (Clock, bool) {
	if len(r.samples) == 0 {
		return Clock{}, false
	}
	s := slices.MinFunc(r.samples, func(a, b sample) int { return int(a.roundTrip - b.roundTrip) })
	return Clock{s.offset, (s.roundTrip + 1) / 2, time.Unix(0, s.measured)}, true
}

// clockPings is how many of the newest pings measure the clock: clocks drift.
const clockPings = 8

// add takes a measurement.
func (r *roundTrips) add(s sample) {
	if len(r.samples) == 0 {
		r.smoothed = s.roundTrip
	} else {
		r.smoothed += (s.roundTrip - r.smoothed) / 8
	}
	if len(r.samples) == clockPings {
		r.samples = r.samples[1:]
	}
	r.samples = append(slices.Clip(r.samples), s)
}
