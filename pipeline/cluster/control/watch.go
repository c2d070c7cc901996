//go:build !js

package control

// watcher hands changes to one function, in order.
type watcher struct {
	mailbox *mailbox
	f       func(MemberChange)
	stopped chan struct{}
}

// Watch calls f for each change of a member, in order, from one goroutine. It begins with a Joined, and a Lost where it
// applies, for each member that has a session. The function that it returns ends the watch.
func (s *Server) Watch(f func(MemberChange)) (stop func()) {
	w := &watcher{newMailbox(), f, make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sessions {
		member := m.member()
		lost := member.Lost
		member.Lost = false
		w.put(MemberChange{Change: Joined, Member: member})
		if lost {
			member.Lost = true
			w.put(MemberChange{Change: Lost, Member: member})
		}
	}
	s.watchers[w] = true
	if !s.closed {
		s.loops.Go(func() { w.mailbox.run(w.stopped) })
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unwatch(w)
	}
}

func (s *Server) unwatch(w *watcher) {
	if s.watchers[w] {
		delete(s.watchers, w)
		close(w.stopped)
	}
}

func (w *watcher) put(c MemberChange) { w.mailbox.put(func() { w.f(c) }) }

// notify queues a change for all watchers. The caller holds s.mu.
func (s *Server) notify(c MemberChange) {
	for w := range s.watchers {
		w.put(c)
	}
}
