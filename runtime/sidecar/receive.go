//go:build unix

package sidecar

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"golang.org/x/sys/unix"
)

// errOver ends the reader after a regular close.
var errOver = errors.New("over")

// receive handles the worker's events until the connection ends.
func (c *connection) receive() {
	f := frames{r: bufio.NewReaderSize(c.socket, 64<<10)}
	in := downloads{connection: c}
	for {
		b, err := f.next()
		if err == nil {
			e := &event{}
			if err = decode(b, e); err == nil && e.kind == evData {
				err = in.data(e)
			} else if err == nil {
				err = c.handle(e)
			}
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, errOver):
			c.lose(device.ErrClosed)
			return
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
			errors.Is(err, unix.ECONNRESET) ||
			errors.Is(err, os.ErrDeadlineExceeded):
			c.lose(c.disconnected())
		default:
			c.process.stop(0)
			c.lose(fmt.Errorf("%w: %v sent an invalid frame: %w; it was killed", device.ErrLost, c.process, err))
		}
		return
	}
}

// disconnected returns the error of a worker whose connection ended.
func (c *connection) disconnected() error {
	c.mu.Lock()
	c.progress.disconnected = true
	c.mu.Unlock()
	if c.process.stop(moment) {
		return fmt.Errorf("%w: %v ended its connection and had to be killed%s", device.ErrLost, c.process, c.process.output.last())
	}
	return fmt.Errorf("%w: %v %s", device.ErrLost, c.process, c.process.fate())
}

// handle takes one event other than data.
func (c *connection) handle(e *event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress.heard = time.Now()
	switch e.kind {
	case evReady:
		return c.ready(e)
	case evState:
		return c.advance(e)
	case evDone:
		return c.answer(e)
	}
	if errors.Is(e.err, device.ErrLost) {
		return c.deviceLost(e.err)
	}
	if c.failed.deferred == nil {
		c.failed.deferred = e.err
	}
	return nil
}

// deviceLost records that the worker's device is lost. The worker ends by itself.
func (c *connection) deviceLost(cause error) error {
	if c.failed.lost == nil {
		c.failed.lost = fmt.Errorf("%w: %v: %v", device.ErrLost, c.process, cause)
	}
	return io.EOF
}

func (c *connection) ready(e *event) error {
	opening := c.calls[0]
	if opening == nil {
		return errors.New("found a second ready event, expected one")
	}
	delete(c.calls, 0)
	c.progress.moved = c.progress.heard
	if opening.err = e.err; e.err == nil {
		c.d.describe(e.ready)
	}
	close(opening.done)
	return nil
}

// advance takes a report of how far the worker is, and frees the stretches of the ring that it has read.
func (c *connection) advance(e *event) error {
	if err := c.progress.advance(e); err != nil {
		return err
	}
	for all := &c.uploads.stretches; len(*all) > 0 && (*all)[0].until <= e.accepted; *all = (*all)[1:] {
		c.uploads.put((*all)[0].end)
	}
	c.room.Broadcast()
	return nil
}

// answer completes a call.
func (c *connection) answer(e *event) error {
	x := c.calls[e.id]
	if x == nil || e.id == 0 {
		return fmt.Errorf("found an answer to unknown call %d", e.id)
	}
	if errors.Is(e.err, device.ErrLost) {
		return c.deviceLost(e.err)
	}
	if e.err == nil && x.filled != int64(len(x.data)) {
		return fmt.Errorf("found %d bytes for a read, expected %d", x.filled, len(x.data))
	}
	delete(c.calls, e.id)
	x.times, x.err = e.times, e.err
	if x.err == nil && x.data != nil {
		x.err = c.failed.deferred // work before the read failed, so the bytes are wrong
	}
	x.err = c.d.owner.Named(x.op, x.object, x.err)
	c.progress.moved = c.progress.heard
	close(x.done)
	if x.op == "close" {
		return errOver
	}
	return nil
}

// downloads takes the bytes of reads out of shared memory. It belongs to the reader.
type downloads struct {
	*connection
	reported int64 // the position in the ring up to which the worker knows that it may overwrite
}

// data takes one piece of a read. Until the call is done, only the reader touches its data.
func (d *downloads) data(e *event) error {
	d.mu.Lock()
	call := d.calls[e.id]
	d.progress.heard = time.Now()
	d.progress.moved = d.progress.heard
	d.mu.Unlock()
	if call == nil || int64(len(call.data))-call.filled < e.n {
		return fmt.Errorf("found %d bytes for call %d, expected none", e.n, e.id)
	}
	from, err := piece(d.memory.down, e.at, e.n)
	if err != nil {
		return err
	}
	copy(call.data[call.filled:], from)
	call.filled += e.n
	if e.end-d.reported >= ringBytes/4 {
		d.reported = e.end
		d.outbox.send(&command{op: opTaken, at: e.end})
	}
	if !e.last {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answer(e)
}
