package coordinator

import (
	"sync"
	"time"
)

// announcements hand the state of all members to a function that may take long, such as one that writes a file. The
// function is called from one goroutine, without a lock.
type announcements struct {
	states  func() []MemberState
	to      func([]MemberState)
	wanted  chan struct{} // has room for one: the members have changed
	used    chan struct{} // has room for one: their links have carried more
	stopped chan struct{}
	calling sync.WaitGroup
}

// announceEvery is the least time between two announcements of what links carry.
const announceEvery = 2 * time.Second

// announce begins announcements.
func announce(states func() []MemberState, to func([]MemberState)) *announcements {
	a := &announcements{states: states, to: to, wanted: make(chan struct{}, 1), used: make(chan struct{}, 1), stopped: make(chan struct{})}
	a.calling.Go(a.run)
	return a
}

// now announces the members: they have changed.
func (a *announcements) now() { signal(a.wanted) }

// soon announces the members as soon as announceEvery allows: their links have carried more.
func (a *announcements) soon() { signal(a.used) }

func (a *announcements) run() {
	var next <-chan time.Time // for what links carry; nil: there is nothing new, or nothing was announced lately
	for used := a.used; ; {
		select {
		case <-a.wanted:
		case <-used:
		case <-next:
			next, used = nil, a.used
			continue
		case <-a.stopped:
			last := a.states()
			for i := range last {
				last[i].State = Ended
			}
			a.to(last)
			return
		}
		a.to(a.states())
		next, used = time.After(announceEvery), nil
	}
}

// close announces the last state of the members, as Ended, and ends the announcements.
func (a *announcements) close() {
	close(a.stopped)
	a.calling.Wait()
}
