package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// handleSignals returns a context that ends at the first signal that asks this process to stop, and counts the signals
// that ask for a checkpoint in saves. A second Ctrl-C ends the process at once. Signals for writes without a reader are
// dropped: see output.
func handleSignals(stderr io.Writer, saves *atomic.Int64) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append(saveSignals(), os.Interrupt, syscall.SIGTERM)...) // of no signals it would send all
	if !signal.Ignored(syscall.SIGHUP) {                                            // nohup ignores it
		signal.Notify(signals, syscall.SIGHUP)
	}
	// Child processes inherit that a signal is ignored, but not that it is caught.
	unread := make(chan os.Signal, 1)
	signal.Notify(unread, syscall.SIGPIPE)
	go func() {
		var s stopper
		for sig := range signals {
			if slices.Contains(saveSignals(), sig) {
				saves.Add(1)
				continue
			}
			text, quits := s.take(sig, time.Now())
			if quits {
				os.Exit(exitInterrupted)
			}
			cancel()
			if text != "" {
				fmt.Fprintf(stderr, "\n%s\n", text)
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); signal.Stop(unread); cancel() }
}

// stopper decides what signals that ask a process to stop do.
type stopper struct {
	stopping    bool
	interrupted time.Time // by the first Ctrl-C
}

// doubled is the time within which a second Ctrl-C counts as the first: programs that start others, and terminals, may
// send one twice.
const doubled = time.Second

// take returns what to write about a signal, and whether the process ends at once: at a Ctrl-C that comes after another
// one, not just with it. All other signals, in any number, let it save.
func (s *stopper) take(sig os.Signal, at time.Time) (text string, quits bool) {
	first := !s.stopping
	s.stopping = true
	if sig == os.Interrupt {
		switch {
		case s.interrupted.IsZero():
			s.interrupted = at
			return "stopping; press Ctrl-C again to quit immediately", false
		case at.Sub(s.interrupted) >= doubled:
			return "", true
		}
		return "", false
	}
	if first {
		text = fmt.Sprintf("stopping (%v)", sig)
	}
	return text, false
}
