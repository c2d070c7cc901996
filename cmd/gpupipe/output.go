package main

import (
	"errors"
	"io"
	"sync"
)

// output is standard output or standard error. When its reader goes away, as head does, and tee on Ctrl-C, or when the
// terminal is closed, what follows is dropped: no command ends because nobody reads it.
type output struct {
	to io.Writer

	mu      sync.Mutex
	dropped bool
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped {
		return len(p), nil
	}
	n, err := o.to.Write(p)
	if err == nil || !readerGone(err) {
		return n, err
	}
	o.dropped = true
	return len(p), nil
}

// errUnread ends what does nothing but write to standard output.
var errUnread = errors.New("nobody reads standard output")

// unread reports whether nobody reads standard output any more.
func (a *app) unread() bool {
	o, ok := a.stdout.(*output)
	if !ok {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}
