//go:build unix

package sidecar

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"golang.org/x/sys/unix"
)

const (
	greeting     = 2 * time.Second // for the first frame of a client
	longestHello = 4096            // bytes
	hostTimeout  = time.Minute     // for the host to connect
	maxBacklog   = 4 << 20         // bytes of answers that the host has not read
)

// Work is the main function of a worker process. It reads the token from its standard input, and serves until its host
// is gone. It ignores signals such as the interrupt of Ctrl-C. The host gets them too, and decides.
func Work(ctx context.Context, stdin io.Reader, socket string, open func(name string) (device.Device, error)) error {
	in := bufio.NewReader(io.LimitReader(stdin, 1<<10))
	token, err := in.ReadString('\n')
	if err != nil {
		return &UsageError{errors.New("no token on the standard input: workers are started by other commands, not by users")}
	}
	// SIGPIPE: a write to a host that is gone must not end the worker
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // which ends with the host
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return attend(ctx, socket, strings.TrimSuffix(token, "\n"), open, endWithHost)
}

// attend listens in a private folder, accepts the host with the token once, and serves until the connection or the
// context ends. The folder of the socket must be private; a folder that does not exist is made and removed. attend
// calls accepted when the socket has been removed. It is no error if the host closes its device or is gone.
func attend(ctx context.Context, socket, token string, open func(name string) (device.Device, error), accepted func()) error {
	conn, h, shared, err := accept(ctx, socket, token)
	if err != nil {
		return err
	}
	accepted()
	defer shared.Close()
	m, err := mapMemory(shared, h.up, h.down)
	if err != nil {
		conn.Close()
		return err
	}
	return newWorker(conn, h, m).serve(ctx, func() (device.Device, error) { return open(h.device) })
}

// accept waits for the client with the token, and removes the socket.
func accept(ctx context.Context, socket, token string) (conn *net.UnixConn, h *hello, shared *os.File, err error) {
	ln, leave, err := listen(socket, token)
	if err != nil {
		return nil, nil, nil, &UsageError{err}
	}
	defer leave()
	defer ln.Close() // removes the socket
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	_ = ln.SetDeadline(time.Now().Add(hostTimeout))
	for {
		conn, err := ln.AcceptUnix()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("no host connected: %w", err)
		}
		h, shared, err := admit(conn, token)
		if err == nil {
			return conn, h, shared, nil
		}
		conn.Close()
		fmt.Fprintf(os.Stderr, "a client was refused: %v\n", err)
	}
}

// listen makes the socket, in a folder that other users cannot enter. leave removes the folder if listen made it.
func listen(socket, token string) (ln *net.UnixListener, leave func(), err error) {
	switch {
	case len(token) < 16:
		return nil, nil, fmt.Errorf("found a token of %d bytes, expected at least 16", len(token))
	case socket == "":
		return nil, nil, errors.New("found an empty socket path")
	case len(socket) > longestPath:
		return nil, nil, fmt.Errorf("found a socket path of %d bytes, expected at most %d: %s", len(socket), longestPath, socket)
	}
	leave, err = privateFolder(filepath.Dir(socket))
	if err != nil {
		return nil, nil, err
	}
	if ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}); err != nil {
		leave()
		return nil, nil, err
	}
	return ln, leave, nil
}

// admit reads the first frame of a client, and accepts the shared memory if the client is the host.
func admit(conn *net.UnixConn, token string) (*hello, *os.File, error) {
	if err := samePerson(conn); err != nil {
		return nil, nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(greeting))
	b, files, err := readHello(conn)
	h := &hello{}
	if err == nil {
		err = decode(b, h)
	}
	if err == nil && subtle.ConstantTimeCompare([]byte(h.token), []byte(token)) != 1 {
		err = errors.New("found another token, expected that of the host")
	}
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("found %d files with the first frame, expected one", len(files))
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	return h, files[0], nil
}

// readHello reads the first frame and the files that come with it. The client sends nothing else before the answer.
func readHello(conn *net.UnixConn) (b []byte, files []*os.File, err error) {
	b = make([]byte, 0, longestHello)
	for {
		control := make([]byte, unix.CmsgSpace(4*4))
		n, nc, _, _, err := conn.ReadMsgUnix(b[len(b):cap(b)], control)
		if err == nil {
			files, err = received(files, control[:nc])
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, files, err
		}
		b = b[:len(b)+n]
		if len(b) < header {
			continue
		}
		want := int64(binary.LittleEndian.Uint32(b)) + header
		switch {
		case want > longestHello || int64(len(b)) > want:
			return nil, files, fmt.Errorf("found a first frame of %d bytes, expected at most %d", want, longestHello)
		case int64(len(b)) == want:
			return b[header:], files, nil
		}
	}
}

// received appends the files of a control message.
func received(files []*os.File, control []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return files, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "shared memory"))
		}
	}
	return files, nil
}
