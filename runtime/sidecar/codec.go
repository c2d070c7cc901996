package sidecar

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
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
	// append adds the kind and the body.
	append(b []byte) []byte
}

// appendFrame adds a whole frame.
func appendFrame(b []byte, m message) []byte {
	start := len(b)
	b = m.append(append(b, make([]byte, header)...))
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-header))
	return b
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

func appendU64(b []byte, n uint64) []byte { return binary.LittleEndian.AppendUint64(b, n) }
func appendI64(b []byte, n int64) []byte  { return appendU64(b, uint64(n)) }
func appendInt(b []byte, n int) []byte    { return binary.LittleEndian.AppendUint32(b, uint32(int32(n))) }

func appendFlag(b []byte, is bool) []byte {
	if is {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendText(b []byte, s string) []byte { return append(appendInt(b, len(s)), s...) }

// decoder decodes a body. It keeps its first error; values read after that are zero.
type decoder struct {
	b   []byte
	err error
}

var errShort = errors.New("a frame ends early")

func (d *decoder) take(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.fail(errShort)
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

func (d *decoder) u8() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) flag() bool {
	b := d.u8()
	if b > 1 {
		d.fail(fmt.Errorf("found flag %d, expected 0 or 1", b))
	}
	return b == 1
}

func (d *decoder) int() int {
	if b := d.take(4); b != nil {
		return int(int32(binary.LittleEndian.Uint32(b)))
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) i64() int64 { return int64(d.u64()) }

// size reads a number that must not be negative.
func (d *decoder) size() int64 {
	n := d.u64()
	if n > math.MaxInt64 {
		d.fail(fmt.Errorf("found size %d, expected at least 0", n))
		return 0
	}
	return int64(n)
}

// count reads the length of a list whose elements take at least that many bytes.
func (d *decoder) count(least int) int {
	n := d.int()
	if n < 0 || n > len(d.b)/least {
		d.fail(errShort)
		return 0
	}
	return n
}

func (d *decoder) text() string { return string(d.take(d.count(1))) }

// end returns the first error, or an error if bytes are left.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = fmt.Errorf("a frame has %d extra bytes", len(d.b))
	}
	return d.err
}
