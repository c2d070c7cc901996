package member

import "sync/atomic"

// Notes passes messages on until it is closed: processes that end together break connections to each other, which is
// not worth a word.
type Notes struct {
	To     func(format string, args ...any)
	closed atomic.Bool
}

// Note passes a message on.
func (n *Notes) Note(format string, args ...any) {
	if n.To != nil && !n.closed.Load() {
		n.To(format, args...)
	}
}

// Close drops all further messages.
func (n *Notes) Close() { n.closed.Store(true) }
