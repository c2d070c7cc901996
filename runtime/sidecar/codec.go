package sidecar

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is the length of the rest, a kind, and a body. All numbers are little-endian. Strings and lists are preceded
// by their lengths.
const (
	version  = 1
	maxFrame = 64 << 20 // bytes: a program, with all its kernels' sources
	header   = 4        // bytes
)

// kind is the kind of a frame. Hosts send the first ones, workers the others.
type kind byte

const (
	opHello kind = iota + 1
	opAlloc
	opFree
	opLoad
	opUnload
	opRun
	opTimed
	opWrite
	opRead
	opSync
	opClose
	opTaken
)

const (
	evReady kind = iota + 65
	evState
	evDone
	evData
	evFailed
)

// message is the content of a frame.
type message interface {
	// code writes or reads the kind and the body.
	code(c *coder)
}

// appendFrame adds a whole frame.
func appendFrame(b []byte, m message) []byte {
	start := len(b)
	b = appendContent(append(b, make([]byte, header)...), m)
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-header))
	return b
}

// appendContent adds the content of a frame.
func appendContent(b []byte, m message) []byte {
	c := coder{b: b}
	m.code(&c)
	return c.b
}

// decode reads the whole content of a frame into a message.
func decode(b []byte, m message) error {
	c := coder{b: b, reads: true}
	m.code(&c)
	if c.err == nil && len(c.b) > 0 {
		c.err = fmt.Errorf("a frame has %d extra bytes", len(c.b))
	}
	return c.err
}

// frames reads frames from a stream. The result of next is valid until the next call.
type frames struct {
	r   *bufio.Reader
	buf bytes.Buffer
}

// next returns the content of the next frame, or io.EOF if the stream ended between two frames. It allocates memory as
// data arrives, whatever length the frame claims.
func (f *frames) next() ([]byte, error) {
	var head [header]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return nil, fmt.Errorf("found a frame of %d bytes, expected 1 to %d", n, maxFrame)
	}
	if f.buf.Cap() > 1<<20 {
		f.buf = bytes.Buffer{}
	}
	f.buf.Reset()
	if _, err := io.CopyN(&f.buf, f.r, int64(n)); err != nil {
		return nil, within(err)
	}
	return f.buf.Bytes(), nil
}

// within returns the error of a stream that ended within a frame.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// coder writes the fields of a frame one after the other, or reads them: what a message consists of is said once. It
// keeps its first error; fields that are read after that are zero. Writing leaves the fields alone: several goroutines
// may write one program.
type coder struct {
	b     []byte // what is written so far, or what is left to read
	reads bool
	err   error
}

var errShort = errors.New("a frame ends early")

// take reads n bytes.
func (c *coder) take(n int) []byte {
	if c.err != nil || n > len(c.b) {
		c.fail(errShort)
		return nil
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *coder) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	if c.reads {
		c.b = nil
	}
}

func (c *coder) u8(x *byte) *coder {
	if !c.reads {
		c.b = append(c.b, *x)
	} else if b := c.take(1); b != nil {
		*x = b[0]
	}
	return c
}

func (c *coder) flag(x *bool) *coder {
	var b byte
	if *x {
		b = 1
	}
	if c.u8(&b); b > 1 {
		c.fail(fmt.Errorf("found flag %d, expected 0 or 1", b))
	}
	if c.reads {
		*x = b == 1
	}
	return c
}

func (c *coder) int(x *int) *coder {
	if !c.reads {
		c.b = binary.LittleEndian.AppendUint32(c.b, uint32(int32(*x)))
	} else if b := c.take(4); b != nil {
		*x = int(int32(binary.LittleEndian.Uint32(b)))
	}
	return c
}

func (c *coder) u64(x *uint64) *coder {
	if !c.reads {
		c.b = binary.LittleEndian.AppendUint64(c.b, *x)
	} else if b := c.take(8); b != nil {
		*x = binary.LittleEndian.Uint64(b)
	}
	return c
}

func (c *coder) i64(x *int64) *coder {
	n := uint64(*x)
	if c.u64(&n); c.reads {
		*x = int64(n)
	}
	return c
}

// size is a number that must not be negative.
func (c *coder) size(x *int64) *coder {
	if c.i64(x); c.reads && *x < 0 {
		c.fail(fmt.Errorf("found size %d, expected at least 0", uint64(*x)))
		*x = 0
	}
	return c
}

// count is the length of a list whose elements take at least that many bytes.
func (c *coder) count(n *int, least int) {
	if c.int(n); c.reads && (*n < 0 || *n > len(c.b)/least) {
		c.fail(errShort)
		*n = 0
	}
}

func (c *coder) text(x *string) *coder {
	n := len(*x)
	if c.count(&n, 1); c.reads {
		*x = string(c.take(n))
	} else {
		c.b = append(c.b, *x...)
	}
	return c
}

// list is a list whose elements take at least that many bytes.
func list[T any](c *coder, least int, all *[]T, element func(x *T)) {
	n := len(*all)
	if c.count(&n, least); c.reads && n > 0 {
		*all = make([]T, n)
	}
	for i := range *all {
		element(&(*all)[i])
	}
}
