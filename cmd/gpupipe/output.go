package main

import (
	"errors"
	"io"
	"sync"
)

// output is standard output or standard error. When its reader goes away, as head does, and tee on Ctrl-C, or when the
// terminal is closed, later output is dropped: the command goes on.
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

// errUnread ends a command that only writes to standard output.
var errUnread = errors.New("standard output is closed")

// unread reports whether the reader of standard output has closed it.
func (a *app) unread() bool {
	o, ok := a.stdout.(*output)
	if !ok {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}
