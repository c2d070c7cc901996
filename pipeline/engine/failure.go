package engine

import "sync"

// failure is the first error of an engine's ranks, or the cause of Abort. It stops all ranks, and the state of all
// ranks is lost with it. Any goroutine may set it and wait for it.
type failure struct {
	once     sync.Once
	occurred chan struct{} // closed by the first set
	err      error         // before occurred is closed
}

func newFailure() *failure { return &failure{occurred: make(chan struct{})} }

// set records the first error and ignores later ones.
func (f *failure) set(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.occurred)
	})
}

// get is the error, or nil if there is none so far.
func (f *failure) get() error {
	select {
	case <-f.occurred:
		return f.err
	default:
		return nil
	}
}
