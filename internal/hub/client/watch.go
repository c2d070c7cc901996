package client

import (
	"context"
	"io"
	"sync"
	"time"
)

// watch ends a context when a connection has been silent for a time.
type watch struct {
	idle   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watched returns a context that ends with errIdle unless bytes come at least once in a time. Stop the watch.
func watched(ctx context.Context, idle time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{idle: idle, cancel: cancel}
	w.timer = time.AfterFunc(2*idle, func() { cancel(errIdle) }) // connecting, and the first byte
	return ctx, w
}

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// reader is a reader of the connection, each of whose reads may take the time.
func (w *watch) reader(r io.Reader) io.Reader { return watchedReader{w, r} }

type watchedReader struct {
	*watch
	from io.Reader
}

func (r watchedReader) Read(p []byte) (int, error) {
	r.timer.Reset(r.idle)
	return r.from.Read(p)
}

// meter counts the bytes of all downloads together.
type meter struct {
	mu          sync.Mutex
	report      func(done, total int64)
	done, total int64
}

// expect raises what there is to do.
func (m *meter) expect(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += total
}

// count returns how many bytes are there, of all.
func (m *meter) count() (done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.done, m.total
}

// add counts bytes; a file that begins again takes back what it counted.
func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.report(m.done, m.total)
}
