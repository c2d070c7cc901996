//go:build unix

package sidecar

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// program is a loaded program.
type program struct {
	device.Loaded
	buffer  device.Buffer // one of the buffers that it uses; nil if there is none
	sources []uint64      // hashes of its kernels' sources; nil after its first run
	took    atomic.Int64  // upper bound of a run, in nanoseconds; 0: unknown
}

// seen records whether a kernel's source was loaded and has run: some drivers compile at load, others at the first run.
type seen struct{ loaded, ran bool }

// answer is the result of work in progress.
type answer struct {
	id      uint64 // 0: a mark, which is not sent to the host
	bytes   int64
	pending device.Pending
	timings device.Timings

	// of a mark:
	after *program
	began time.Time
	fresh int64
}

// work opens the device, carries out commands and closes it.
func (w *worker) work(open func() (device.Device, error)) {
	dev, err := open()
	if err != nil {
		w.outbox.send(&event{kind: evReady, err: err})
		w.end(err)
		return
	}
	w.dev = dev
	w.outbox.send(&event{kind: evReady, ready: describe(dev)})
	w.waiting.Go(w.deliver)
	for !w.over() {
		select {
		case c := <-w.queue:
			w.queued.Add(-c.bytes)
			if c.op == opClose {
				w.shut(c.id)
				return
			}
			if err := w.do(c); err != nil {
				w.end(fmt.Errorf("the host: %w", err))
			}
			w.accept()
		case <-w.ending:
		}
	}
	close(w.answers)
	_ = dev.Close() // there is no host to report it to
	w.waiting.Wait()
}

func describe(dev device.Device) *description {
	d := &description{Info: dev.Info(), Limits: dev.Limits(), Budget: device.Budget(dev)}
	_, d.Timer = dev.(device.Timer)
	return d
}

// shut closes the device when all answers have been sent.
func (w *worker) shut(id uint64) {
	close(w.answers)
	w.waiting.Wait()
	w.reply(id, w.dev.Close())
	w.end(nil)
}

// accept counts a command as carried out, and reports it when the host may be waiting for that.
func (w *worker) accept() {
	n := w.accepted.Add(1)
	w.moves.Add(1)
	_, staging := w.dev.Allocated()
	w.staging.Store(staging)
	if n-w.acked >= ackEvery || w.consumed >= int64(len(w.memory.up))/4 {
		w.acked, w.consumed = n, 0
		w.outbox.send(&w.status)
	}
}

var errUnknown = errors.New("it names an unknown buffer or program")

// release releases a buffer or a program by its identifier.
func release[T interface{ Release() }](all map[uint64]T, id uint64) error {
	x, ok := all[id]
	if !ok {
		return errUnknown
	}
	delete(all, id)
	x.Release()
	return nil
}

// do carries out a command. Its error is the host's fault. Errors of the device are sent to the host.
func (w *worker) do(c *command) error {
	switch c.op {
	case opAlloc:
		return w.alloc(c)
	case opFree:
		return release(w.buffers, c.id)
	case opLoad:
		return w.load(c)
	case opUnload:
		return release(w.programs, c.id)
	case opRun:
		return w.run(c)
	case opTimed:
		return w.runTimed(c)
	case opWrite:
		return w.write(c)
	case opRead:
		return w.fetch(c)
	}
	w.waiting.Go(func() { w.reply(c.id, w.dev.Sync()) })
	return nil
}

func (w *worker) alloc(c *command) error {
	if w.buffers[c.id] != nil {
		return fmt.Errorf("found two buffers with number %d", c.id)
	}
	b, err := w.dev.Alloc(c.label, c.n)
	if err == nil {
		w.buffers[c.id] = b
	}
	w.reply(c.id, err)
	return nil
}

func (w *worker) load(c *command) error {
	if w.programs[c.id] != nil {
		return fmt.Errorf("found two programs with number %d", c.id)
	}
	p := &program{}
	for _, cmd := range c.program.Commands {
		for i, r := range cmd.Args {
			if p.buffer = w.buffers[uint64(r.Buffer.(handle))]; p.buffer == nil {
				return errUnknown
			}
			cmd.Args[i].Buffer = p.buffer
		}
	}
	for _, s := range c.program.Shaders {
		p.sources = append(p.sources, maphash.String(w.seed, s.Source))
	}
	fresh := w.count(p, func(s *seen) *bool { return &s.loaded })
	defer w.fresh.Add(-fresh)
	var err error
	if p.Loaded, err = w.dev.Load(c.program); err == nil {
		w.programs[c.id] = p
	}
	w.reply(c.id, err)
	return nil
}

func (w *worker) run(c *command) error {
	p := w.programs[c.id]
	if p == nil {
		return errUnknown
	}
	fresh := w.count(p, func(s *seen) *bool { return &s.ran })
	p.sources = nil
	if err := w.dev.Run(p.Loaded); err != nil {
		w.fresh.Add(-fresh)
		w.failed(err)
		return nil
	}
	w.mark(p, fresh)
	return nil
}

// count returns how many kernels of a program are compiled for the first time, and counts them as in progress.
func (w *worker) count(p *program, met func(*seen) *bool) (fresh int64) {
	for _, source := range p.sources {
		if w.seen[source] == nil {
			w.seen[source] = &seen{}
		}
		if first := met(w.seen[source]); !*first {
			*first = true
			fresh++
		}
	}
	w.fresh.Add(fresh)
	return fresh
}

// mark enqueues a small read when the device may be busy for long. Its completion shows that the device makes progress.
// A new program may take long, and so may several known ones.
func (w *worker) mark(p *program, fresh int64) {
	took := time.Duration(p.took.Load())
	w.unmarked += took
	if p.buffer != nil && (took == 0 || w.unmarked >= w.silence/16) {
		if r, err := w.dev.Read(p.buffer, 0, 4); err == nil {
			w.unmarked = 0
			w.await(&answer{pending: r, after: p, began: time.Now(), fresh: fresh})
			return
		}
	}
	w.fresh.Add(-fresh)
}

func (w *worker) runTimed(c *command) error {
	p := w.programs[c.buffer]
	timer, ok := w.dev.(device.Timer)
	if p == nil || !ok {
		return errUnknown
	}
	t, err := timer.RunTimed(p.Loaded)
	w.reply(c.id, err)
	if err != nil {
		w.reply(c.id+1, err)
		return nil
	}
	w.await(&answer{id: c.id + 1, timings: t})
	return nil
}

func (w *worker) write(c *command) error {
	data, err := piece(w.memory.up, c.at, c.n)
	b := w.buffers[c.buffer]
	if err != nil || b == nil {
		return errors.Join(err, errUnknown)
	}
	if err := w.dev.Write(b, c.offset, data); err != nil {
		w.failed(err)
	}
	w.consumed += c.n
	return nil
}

func (w *worker) fetch(c *command) error {
	b := w.buffers[c.buffer]
	if b == nil {
		return errUnknown
	}
	r, err := w.dev.Read(b, c.offset, c.n)
	if err != nil {
		w.reply(c.id, err)
		return nil
	}
	w.hold(c.n)
	w.await(&answer{id: c.id, bytes: c.n, pending: r})
	return nil
}

// hold waits while the host has too many bytes to fetch.
func (w *worker) hold(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.held > 0 && w.held+n > maxHeldBytes && !w.over() {
		w.room.Wait()
	}
	w.held += n
}

func (w *worker) await(a *answer) {
	select {
	case w.answers <- a:
	case <-w.ending:
	}
}
