//go:build unix

package sidecar

import (
	"time"
)

// deliver waits for reads and measurements in order, and sends their results.
func (w *worker) deliver() {
	var before time.Time // when the previous one completed
	for a := range w.answers {
		switch {
		case w.over():
		case a.timings != nil:
			times, err := a.timings.Wait()
			w.report(&event{kind: evDone, id: a.id, times: times, err: err})
		case a.id == 0:
			w.passed(a, before)
		default:
			w.send(a)
		}
		before = time.Now()
	}
}

// passed records a mark that has completed.
func (w *worker) passed(a *answer, before time.Time) {
	_, _ = a.pending.Wait() // the host gets the error with another answer
	if before.Before(a.began) {
		before = a.began
	}
	a.after.took.Store(max(1, int64(time.Since(before))))
	w.moves.Add(1)
	w.fresh.Add(-a.fresh)
}

// send sends the bytes of a read, piece by piece as the host frees the ring.
func (w *worker) send(a *answer) {
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
		w.report(&event{kind: evData, id: a.id, at: at, n: n, end: end, last: len(data) == 0})
	}
	w.mu.Lock()
	w.held -= a.bytes
	w.room.Broadcast()
	w.mu.Unlock()
}

// place reserves n bytes of the ring. ok is false if the connection ends first.
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
