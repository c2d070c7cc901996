//go:build unix

package sidecar

import (
	"time"
)

// deliver waits for what is under way, in order, and hands it on.
func (w *worker) deliver() {
	var before time.Time // when the last of them arrived
	for a := range w.answers {
		switch {
		case w.over():
		case a.timings != nil:
			times, err := a.timings.Wait()
			w.tell(&event{kind: evDone, id: a.id, times: times, err: err})
		case a.id == 0:
			w.arrived(a, before)
		default:
			w.hand(a)
		}
		before = time.Now()
	}
}

// arrived takes note of a mark.
func (w *worker) arrived(a *answer, before time.Time) {
	_, _ = a.pending.Wait() // an error comes to the host by other ways
	if before.Before(a.began) {
		before = a.began
	}
	a.after.took.Store(max(1, int64(time.Since(before))))
	w.moves.Add(1)
	w.fresh.Add(-a.fresh)
}

// hand gives the host what was read, piece by piece as it takes it.
func (w *worker) hand(a *answer) {
	data, err := a.pending.Wait()
	if err != nil || len(data) == 0 {
		w.reply(a.id, err)
	}
	for len(data) > 0 && err == nil {
		n := min(int64(len(data)), w.downloads.most())
		at, end, ok := w.place(n)
		if !ok {
			return
		}
		copy(w.memory.down[at:], data[:n])
		data = data[n:]
		w.tell(&event{kind: evData, id: a.id, at: at, n: n, end: end, last: len(data) == 0})
	}
	w.mu.Lock()
	w.held -= a.bytes
	w.room.Broadcast()
	w.mu.Unlock()
}

// place waits for n bytes of the ring; false when there is no need for them any more.
func (w *worker) place(n int64) (at, end int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if at, end, ok = w.downloads.take(n); ok || w.over() {
			return at, end, ok
		}
		w.room.Wait()
	}
}
