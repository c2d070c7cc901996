package control

import "time"

// contact is what a client knows of its contact with the coordinator.
type contact struct {
	welcomed   bool // on this connection
	restarting bool // the next welcome begins a session that replaces another
	lease      time.Duration
	silence    silence // since the last frame from the coordinator
	lastErr    error   // of an attempt to connect
}

func newContact() contact { return contact{lease: defaultLease, silence: newSilence()} }

// heard records a frame from the coordinator.
func (c *contact) heard() { c.silence = newSilence() }

// disconnected records the end of a connection. err is its cause, if one is known.
func (c *contact) disconnected(err error) {
	if err != nil {
		c.lastErr = explain(err)
	}
	c.welcomed = false
}

// restart records that the coordinator does not know the session.
func (c *contact) restart() { c.welcomed, c.restarting = false, true }

// welcome records a welcome. again reports whether the connection had one before, restarted whether it begins a session
// that replaces another.
func (c *contact) welcome(lease time.Duration) (again, restarted bool) {
	again, restarted = c.welcomed, c.restarting
	c.welcomed, c.restarting, c.lastErr, c.lease = true, false, nil, lease
	return again, restarted
}

// silent is how long a running process has heard nothing from the coordinator.
func (c *contact) silent() time.Duration { return c.silence.measure(c.lease) }

// silence is the time in which a running process has heard nothing. While it is stopped, or its computer sleeps, or its
// tab is frozen, it cannot hear: when it continues, it has to ask first.
type silence struct {
	length   time.Duration
	measured time.Time
}

func newSilence() silence { return silence{measured: time.Now()} }

// measure returns the time so far. Two calls that are farther apart than longest count as longest.
func (s *silence) measure(longest time.Duration) time.Duration {
	now := time.Now()
	s.length += min(now.Sub(s.measured), longest)
	s.measured = now
	return s.length
}
