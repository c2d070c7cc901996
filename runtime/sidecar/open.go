//go:build unix

package sidecar

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"golang.org/x/sys/unix"
)

// Available reports whether this system has workers.
const Available = true

// Open starts a worker that opens a device. Close ends it.
func Open(o Options) (*Device, error) {
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("worker process for %s: %w", device.Described(o.Device), err)
	}
	return d, nil
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
	d := newDevice(o.Device)
	c := newConnection(d, p, conn, o)
	d.worker = c
	if err := c.greet(&hello{token: token, device: o.Device, up: ringBytes, down: ringBytes, silence: o.silence()}); err != nil {
		p.stop(0)
		conn.Close()
		return nil, err
	}
	answer := newCall("open", "")
	c.calls[0] = answer
	c.start()
	if err := answer.wait(); err != nil {
		c.end(grace)
		return nil, err
	}
	return d, nil
}

// greet sends the first frame, and the shared memory with it.
func (c *connection) greet(h *hello) error {
	if err := samePerson(c.socket); err != nil {
		return fmt.Errorf("%v: a process of another user listens at the worker's socket: %w", c.process, err)
	}
	memory, file, err := newMemory(h.up, h.down)
	if err != nil {
		return err
	}
	defer file.Close()
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.progress.silence))
	frame := appendFrame(nil, h)
	n, _, err := c.socket.WriteMsgUnix(frame, unix.UnixRights(int(file.Fd())), nil)
	if err == nil && n < len(frame) {
		_, err = c.socket.Write(frame[n:])
	}
	if err != nil {
		_ = memory.close()
		c.process.stop(grace)
		return fmt.Errorf("%w: %w", c.process.early(), err)
	}
	_ = c.socket.SetWriteDeadline(time.Time{})
	c.memory = memory
	return nil
}
