package control

import (
	"encoding/binary"
	"time"
)

const (
	pingSize    = 8  // the coordinator's time
	pongSize    = 24 // the same, the member's time when the ping came and when the pong left
	clockPings  = 8
	pingTimeout = time.Second
)

// Clock is the difference between the clocks of two computers.
type Clock struct {
	Offset    time.Duration // the member's clock minus the coordinator's
	Error     time.Duration // the true offset is at most this far from Offset: half the round trip
	RoundTrip time.Duration // the least of several
	Measured  time.Time     // by the coordinator's clock
}

// clockOf computes the offset from the four times of a ping and its pong: sent and answered by the coordinator's clock,
// received and replied by the member's. The error is half the round trip, whatever the times of the two directions.
func clockOf(sent, received, replied, answered int64) Clock {
	roundTrip := max(0, (answered-sent)-(replied-received))
	return Clock{
		Offset:    time.Duration((received-sent)/2 + (replied-answered)/2),
		Error:     time.Duration((roundTrip + 1) / 2),
		RoundTrip: time.Duration(roundTrip),
		Measured:  time.Unix(0, answered),
	}
}

// decodePong reads the times of a pong. Times in which nothing can be right are refused.
func decodePong(b []byte) (sent, received, replied int64, ok bool) {
	if len(b) != pongSize {
		return 0, 0, 0, false
	}
	sent, received, replied = int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])), int64(binary.BigEndian.Uint64(b[16:]))
	return sent, received, replied, received > 0 && replied >= received
}
