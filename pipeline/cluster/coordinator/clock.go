package coordinator

import (
	"sort"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// memberClock converts times of a member's clock to the clock of this process. The conversion is a continuous, growing
// function that never changes for the past, so events of a track do not overlap and arrows stay in their slices. After
// a measurement the offset moves to the new one within a second or, if they are far apart, by half of the time that
// passes.
type memberClock struct {
	mu     sync.Mutex
	points []clockPoint
	bound  time.Duration // the newest offset was at most this far from the true one
	since  time.Time     // when it was measured, by the clock of this process
	moving time.Duration // the offset in use is at most this far from the true one until it has reached the newest
}

// clockPoint is the offset at a time of the member's clock. Between two points it is interpolated.
type clockPoint struct {
	at     int64 // Unix nanoseconds
	offset int64 // nanoseconds
}

// clockDrift is the greatest difference of the rates of two clocks: a kernel changes the rate by at most 500 millionths
// to follow a time server.
const clockDrift = 500e-6

const clockMoves = time.Second // the least time in which the offset in use changes

// take takes a measurement, which may have been made a while before now. It returns the error of all conversions since
// the one before. The offset changes for events after now only: earlier ones may be converted already.
//
// With o(t) = the offset in use at a time t of the member's clock, m ± e = the measured offset at t₁, e₀ = the error of
// the measurement before at t₀, r = clockDrift, d = |m − o(t₁)|:
//
//	aged = e₀ + r (t₁ − t₀)        how far o(t₁) is from the true offset at most, by the measurement before
//	d ≤ e + aged                   both measurements may be right; otherwise the member's clock has been set
//	e ≥ aged                       the measurement is no better than the known offset, and nothing changes
//	min(aged, d + e)               how far o(t₁) is at most by both: the true offset is within e of m
//
// From start = now on, o moves to m in a straight line, during T = max(1 s, 2 |m − o(start)|). Its slope is at most a
// half, so converted times t − o(t) grow. Until the end of T, o is between its value before and m:
//
//	|o(t) − true offset| ≤ max(d, |m − o(start)|) + e + r (now − t₁ + T) = moving
func (c *memberClock) take(m transport.Clock, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := m.Measured.Add(m.Offset).UnixNano() // by the member's clock
	if len(c.points) == 0 {
		c.points, c.bound, c.since = []clockPoint{{at, int64(m.Offset)}}, m.Error, m.Measured
		return m.Error
	}
	aged := c.aged(m.Measured)
	used := c.offset(at)
	difference := (m.Offset - time.Duration(used)).Abs()
	if difference <= m.Error+aged { // the clock has not been set
		if m.Error >= aged {
			return max(aged, c.moving) // a worse measurement than the known one
		}
		aged = min(aged, difference+m.Error)
	} else {
		aged = difference + m.Error
	}
	stated := max(aged, c.moving)
	start := max(now.Add(m.Offset+m.Error).UnixNano(), c.points[len(c.points)-1].at)
	used = c.offset(start)
	moves := max(clockMoves, 2*(m.Offset-time.Duration(used)).Abs())
	c.points = append(c.points, clockPoint{start, used}, clockPoint{start + int64(moves), int64(m.Offset)})
	c.bound, c.since = m.Error, m.Measured
	c.moving = max(difference, (m.Offset-time.Duration(used)).Abs()) + m.Error +
		time.Duration(clockDrift*float64(now.Sub(m.Measured)+moves))
	return stated
}

// aged is the bound at a time: clocks drift. The caller holds the lock.
func (c *memberClock) aged(now time.Time) time.Duration {
	return c.bound + time.Duration(clockDrift*float64(max(0, now.Sub(c.since))))
}

// now is the error at a time, without a new measurement.
func (c *memberClock) now(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.aged(now), c.moving)
}

// newest is the offset that was measured last.
func (c *memberClock) newest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.points[len(c.points)-1].offset)
}

// convert converts a time of the member's clock, in Unix nanoseconds.
func (c *memberClock) convert(at int64) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, at-c.offset(at))
}

// known reports whether the clock has been measured. Until then it cannot be converted.
func (c *memberClock) known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.points) > 0
}

// offset is the offset in use at a time of the member's clock. The caller holds the lock.
func (c *memberClock) offset(at int64) int64 {
	i := sort.Search(len(c.points), func(i int) bool { return c.points[i].at > at })
	switch i {
	case 0:
		return c.points[0].offset
	case len(c.points):
		return c.points[i-1].offset
	}
	a, b := c.points[i-1], c.points[i]
	return a.offset + int64(float64(b.offset-a.offset)*float64(at-a.at)/float64(b.at-a.at))
}
