package control

import "time"

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
