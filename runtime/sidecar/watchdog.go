//go:build unix

package sidecar

import (
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// progress is how far the worker is, and when it last showed it.
type progress struct {
	silence      time.Duration // the longest that a worker with work may show no progress
	setting      string        // what the user sets silence by
	sent         uint64        // commands
	last         event         // the worker's latest report
	moved        time.Time     // when its device last got on
	heard        time.Time     // when it last sent anything
	disconnected bool
}

// pending returns how many commands the worker has not yet accepted.
func (p *progress) pending() uint64 { return p.sent - p.last.accepted }

// advance takes a report of the worker.
func (p *progress) advance(e *event) error {
	if e.accepted < p.last.accepted || e.accepted > p.sent {
		return fmt.Errorf("found %d commands carried out, expected %d to %d", e.accepted, p.last.accepted, p.sent)
	}
	if e.moves != p.last.moves {
		p.moved = p.heard
	}
	p.last = *e
	return nil
}

// restart counts silence from now on.
func (p *progress) restart(now time.Time) { p.heard, p.moved = now, now }

// watch kills a worker that has work and makes no progress.
func (c *connection) watch() {
	every := beat(c.progress.silence)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for before := time.Now(); ; {
		select {
		case <-c.process.ended:
			return
		case <-c.background.quit:
			return
		case <-ticker.C:
		}
		now := time.Now()
		stopped := now.Sub(before) > 4*every // this process itself stood still
		if before = now; c.overdue(now, stopped) {
			return
		}
	}
}

// overdue reports whether the worker has been silent for too long, and kills it then.
func (c *connection) overdue(now time.Time, excused bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.progress
	if excused || p.disconnected || len(c.calls) == 0 && p.pending() == 0 {
		p.restart(now)
		return false
	}
	switch {
	case now.Sub(p.heard) > min(p.silence, maxQuiet):
		c.kill("sent nothing", now.Sub(p.heard), "")
	case now.Sub(p.moved) > progressTimeout(p.silence, p.last.fresh):
		c.kill("made no progress", now.Sub(p.moved), p.setting)
	default:
		return false
	}
	return true
}

// kill kills the worker. setting, if not empty, is named as what gives a slow device more time.
func (c *connection) kill(what string, silent time.Duration, setting string) {
	if c.failed.lost == nil {
		slow := ""
		if setting != "" {
			slow = fmt.Sprintf(" (%s: %v; if the device is only slow, set a longer one)", setting, c.progress.silence)
		}
		c.failed.lost = fmt.Errorf("%w: %v %s for %v, and was killed%s%s", device.ErrLost, c.process, what,
			silent.Round(10*time.Millisecond), slow, c.process.output.last())
	}
	_ = c.process.cmd.Process.Kill()
	_ = c.socket.SetReadDeadline(time.Now().Add(moment)) // ends the reader even if the process cannot be killed
}
