package coordinator

import (
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
)

// expulsions ends members for good: those whose messages are malformed, and those that another process has expelled in
// the file of the authority.
type expulsions struct {
	authority *identity.Authority
	control   *control.Server
	note      func(format string, args ...any)
	stopped   chan struct{}
	watching  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	done   []string // members that are expelled
}

// authorityEvery is the time between two looks at the authority's file.
const authorityEvery = time.Second

// watchExpulsions ends the sessions of members that are expelled from now on.
func watchExpulsions(a *identity.Authority, c *control.Server, note func(format string, args ...any)) *expulsions {
	e := &expulsions{authority: a, control: c, note: note, stopped: make(chan struct{}), done: a.Expelled()}
	e.watching.Go(e.watch)
	return e
}

// close stops the watch.
func (e *expulsions) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	close(e.stopped)
	e.watching.Wait()
}

func (e *expulsions) watch() {
	tick := time.NewTicker(authorityEvery)
	defer tick.Stop()
	noted := ""
	for {
		select {
		case <-tick.C:
		case <-e.stopped:
			return
		}
		if err := e.authority.Refresh(); err == nil {
			noted = ""
		} else if noted != err.Error() {
			noted = err.Error()
			e.note("no member can join: %v", err)
		}
		for _, id := range e.authority.Expelled() {
			if e.add(id) {
				e.end(id, "gpupipe members --expel")
			}
		}
	}
}

// expel expels a member. It does not wait until the member's session has ended.
func (e *expulsions) expel(id, reason string) {
	if !e.add(id) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.watching.Go(func() {
		if err := e.authority.Expel(id); err != nil {
			e.note("%s may come back when the coordinator restarts: %v", id, err)
		}
		e.end(id, reason)
	})
}

// add notes that a member is expelled. It reports whether that is new.
func (e *expulsions) add(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.done, id) {
		return false
	}
	e.done = append(e.done, id)
	return true
}

// has reports whether a member is expelled, though its session may not have ended yet.
func (e *expulsions) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.done, id)
}

// end ends the session of an expelled member.
func (e *expulsions) end(id, reason string) {
	e.note("%s is expelled: %s", id, reason)
	_ = e.control.Expel(id, reason) // it may be gone already
}
