//go:build unix

package sidecar

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// Open starts a worker and has it open its device. Close ends it.
func Open(o Options) (*Device, error) {
	d, err := open(o)
	switch {
	case err == nil:
		return d, nil
	case o.Device == "":
		return nil, fmt.Errorf("a process for the default device: %w", err)
	}
	return nil, fmt.Errorf("a process for device %q: %w", o.Device, err)
}

func open(o Options) (*Device, error) {
	socket, err := newSocket()
	if err != nil {
		return nil, err
	}
	sweep(filepath.Dir(filepath.Dir(socket)))
	token := rand.Text() + rand.Text()
	p, err := start(o, socket, token)
	if err != nil {
		return nil, err
	}
	defer removeSocket(socket)
	conn, err := p.connect(socket, listening)
	if err != nil {
		return nil, err
	}
	d := &Device{name: o.Device, silence: o.silence(), setting: o.Setting, process: p, conn: conn, ended: make(chan struct{}), quit: make(chan struct{}),
		calls: map[uint64]*call{}, uploads: ring{size: ringBytes}, moved: time.Now(), heard: time.Now()}
	d.room.L = &d.mu
	answer := newCall("open", "")
	d.calls[0] = answer
	if err := d.greet(&hello{token: token, device: o.Device, up: ringBytes, down: ringBytes, silence: d.silence}); err != nil {
		p.stop(0)
		conn.Close()
		return nil, err
	}
	d.link = newLink(conn, 0)
	d.reading.Go(d.read)
	d.reading.Go(d.watch)
	if err := answer.wait(); err != nil {
		d.end(grace)
		return nil, err
	}
	return d, nil
}

// greet sends the first frame, and the shared memory with it.
func (d *Device) greet(h *hello) error {
	if err := samePerson(d.conn); err != nil {
		return fmt.Errorf("%v: who listens at its socket is another's: %w", d.process, err)
	}
	memory, file, err := newMemory(h.up, h.down)
	if err != nil {
		return err
	}
	defer file.Close()
	_ = d.conn.SetWriteDeadline(time.Now().Add(d.silence))
	frame := appendFrame(nil, h)
	n, _, err := d.conn.WriteMsgUnix(frame, unix.UnixRights(int(file.Fd())), nil)
	if err == nil && n < len(frame) {
		_, err = d.conn.Write(frame[n:])
	}
	if err != nil {
		_ = memory.close()
		d.process.stop(grace)
		return fmt.Errorf("%w: %w", d.process.early(), err)
	}
	_ = d.conn.SetWriteDeadline(time.Time{})
	d.memory = memory
	return nil
}

// errOver ends the reading where all is well.
var errOver = errors.New("over")

// read carries out what the worker says until it has no more to say.
func (d *Device) read() {
	f := frames{r: bufio.NewReaderSize(d.conn, 64<<10)}
	for {
		b, err := f.next()
		if err == nil {
			var e *event
			if e, err = decodeEvent(b); err == nil {
				err = d.hear(e)
			}
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, errOver):
			d.lose(device.ErrClosed)
			return
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) ||
			errors.Is(err, os.ErrDeadlineExceeded):
			d.lose(d.parted())
		default:
			d.process.stop(0)
			d.lose(fmt.Errorf("%w: %v said what it must not: %w; it was killed", device.ErrLost, d.process, err))
		}
		return
	}
}

// parted tells of a worker whose connection ended.
func (d *Device) parted() error {
	d.mu.Lock()
	d.parting = true
	d.mu.Unlock()
	if d.process.stop(moment) {
		return fmt.Errorf("%w: %v ended its connection and had to be killed%s", device.ErrLost, d.process, d.process.words.last())
	}
	return fmt.Errorf("%w: %v %s", device.ErrLost, d.process, d.process.fate())
}

// lose notices that there will be no more answers: whoever waits is told, and who comes later. The first cause counts.
func (d *Device) lose(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost == nil {
		d.lost = cause
	}
	for id, c := range d.calls {
		if c.err = d.lost; id > 0 {
			c.err = d.named(c.op, c.object, d.lost)
		}
		close(c.done)
		delete(d.calls, id)
	}
	d.room.Broadcast()
}

// hear carries out one event.
func (d *Device) hear(e *event) error {
	if e.kind == evData {
		return d.data(e)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = time.Now()
	switch e.kind {
	case evReady:
		return d.ready(e)
	case evState:
		return d.progress(e)
	case evDone:
		return d.answer(e)
	}
	if errors.Is(e.err, device.ErrLost) {
		return d.gone(e.err)
	}
	if d.deferred == nil {
		d.deferred = e.err
	}
	return nil
}

// gone is the error of a worker that says that its device is lost. It ends by itself.
func (d *Device) gone(cause error) error {
	if d.lost == nil {
		d.lost = fmt.Errorf("%w: %v: %v", device.ErrLost, d.process, cause)
	}
	return io.EOF
}

func (d *Device) ready(e *event) error {
	c := d.calls[0]
	if c == nil {
		return errors.New("ready twice")
	}
	delete(d.calls, 0)
	d.moved = d.heard
	if c.err = e.err; e.err == nil {
		d.has, d.name = *e.ready, e.ready.Info.Name
	}
	close(c.done)
	return nil
}

func (d *Device) progress(e *event) error {
	if e.accepted < d.last.accepted || e.accepted > d.sent {
		return fmt.Errorf("%d commands carried out, after %d of %d", e.accepted, d.last.accepted, d.sent)
	}
	if e.moves != d.last.moves {
		d.moved = d.heard
	}
	d.last = *e
	for len(d.stretches) > 0 && d.stretches[0].until <= e.accepted {
		d.uploads.put(d.stretches[0].end)
		d.stretches = d.stretches[1:]
	}
	d.room.Broadcast()
	return nil
}

// data takes a piece of a read out of shared memory. Only the reader touches a call's data while it waits.
func (d *Device) data(e *event) error {
	d.mu.Lock()
	c := d.calls[e.id]
	d.heard = time.Now()
	d.moved = d.heard
	d.mu.Unlock()
	if c == nil || int64(len(c.data))-c.filled < e.n {
		return fmt.Errorf("%d bytes for call %d, which does not await them", e.n, e.id)
	}
	from, err := piece(d.memory.down, e.at, e.n)
	if err != nil {
		return err
	}
	copy(c.data[c.filled:], from)
	c.filled += e.n
	if e.end-d.told >= ringBytes/4 {
		d.told = e.end
		d.link.send(&command{op: opTaken, at: e.end})
	}
	if !e.last {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answer(e)
}

// answer ends a call.
func (d *Device) answer(e *event) error {
	c := d.calls[e.id]
	if c == nil || e.id == 0 {
		return fmt.Errorf("an answer to call %d, which nobody made", e.id)
	}
	if errors.Is(e.err, device.ErrLost) {
		return d.gone(e.err)
	}
	if e.err == nil && c.filled != int64(len(c.data)) {
		return fmt.Errorf("%d bytes for a read of %d", c.filled, len(c.data))
	}
	delete(d.calls, e.id)
	c.times, c.err = e.times, e.err
	if c.err == nil && c.data != nil {
		c.err = d.deferred // what was read is what work left that failed
	}
	c.err = d.named(c.op, c.object, c.err)
	d.moved = d.heard
	close(c.done)
	if c.op == "close" {
		return errOver
	}
	return nil
}

// watch gives a worker up that has work and does not get on with it.
func (d *Device) watch() {
	every := beat(d.silence)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for before := time.Now(); ; {
		select {
		case <-d.process.ended:
			return
		case <-d.quit:
			return
		case <-ticker.C:
		}
		now := time.Now()
		if now.Sub(before) > 4*every { // it was this process that stood still
			d.excuse(now)
		}
		if before = now; d.silent(now) {
			return
		}
	}
}

// excuse counts from now on.
func (d *Device) excuse(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard, d.moved = now, now
}

// silent looks whether the worker owes a sign, and kills it if it has owed one for too long.
func (d *Device) silent(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.parting || len(d.calls) == 0 && d.sent == d.last.accepted {
		d.heard, d.moved = now, now
		return false
	}
	switch {
	case now.Sub(d.heard) > min(d.silence, longestBreath):
		d.giveUp("gave no sign of life", now.Sub(d.heard), "")
	case now.Sub(d.moved) > patience(d.silence, d.last.fresh):
		d.giveUp("got no work done", now.Sub(d.moved), d.setting)
	default:
		return false
	}
	return true
}

// giveUp names the setting, if any, by which a slow device is given longer.
func (d *Device) giveUp(what string, long time.Duration, setting string) {
	if d.lost == nil {
		slow := ""
		if setting != "" {
			slow = fmt.Sprintf(" (%s: %v; if the device is only slow, set a longer one)", setting, d.silence)
		}
		d.lost = fmt.Errorf("%w: %v %s for %v, and was killed%s%s", device.ErrLost, d.process, what, long.Round(10*time.Millisecond), slow, d.process.words.last())
	}
	_ = d.process.cmd.Process.Kill()
	_ = d.conn.SetReadDeadline(time.Now().Add(moment)) // the reader is to notice, even if the process cannot be killed
}
