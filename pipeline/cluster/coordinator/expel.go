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

	mu   sync.Mutex
	done []string // members that are expelled
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
			e.end(id, "gpupipe members --expel")
		}
	}
}

// expel expels a member.
func (e *expulsions) expel(id, reason string) {
	if err := e.authority.Expel(id); err != nil {
		e.note("%s is expelled until the coordinator restarts: %v", id, err)
	}
	e.end(id, reason)
}

// end ends the session of an expelled member, once.
func (e *expulsions) end(id, reason string) {
	e.mu.Lock()
	known := slices.Contains(e.done, id)
	if !known {
		e.done = append(e.done, id)
	}
	e.mu.Unlock()
	if known {
		return
	}
	e.note("%s is expelled: %s", id, reason)
	_ = e.control.Expel(id, reason) // it may be gone already
}
