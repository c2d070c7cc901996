package sidecar

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func travelling() *device.Program {
	return &device.Program{Label: "p\xff", Shaders: []device.Shader{
		{Label: "a", Source: "fn main() {}", Bindings: []device.Access{0, 1, 9}, Workgroup: [3]int{64, 1, -1}, WorkgroupMemory: 16384}, {}},
		Commands: []device.Command{
			{Shader: 1, Args: []device.Range{{Buffer: handle(7), Offset: 256, Size: 1 << 40}, {Buffer: handle(0), Offset: -4, Size: -1}},
				Groups: [3]int{65535, 1, 1}},
			{Shader: device.Copy}}}
}

func commands() []*command {
	return []*command{
		{op: opAlloc, id: 1, label: "weights", n: 1 << 40}, {op: opAlloc, id: math.MaxUint64, n: -4}, {op: opFree, id: 2},
		{op: opLoad, id: 3, program: travelling()}, {op: opLoad, id: 3, program: &device.Program{}}, {op: opUnload, id: 3},
		{op: opRun, id: 3}, {op: opTimed, id: 4, buffer: 3}, {op: opWrite, buffer: 1, offset: -8, n: 64, at: 128},
		{op: opRead, id: 5, buffer: 1, offset: 4, n: 8},
		{op: opSync, id: 6}, {op: opClose, id: 7}, {op: opTaken, at: 99},
	}
}

func events() []*event {
	lost := &device.Error{Op: "run", Object: "k\n", Device: "vulkan:0", Cause: &remote{"device lost: X", device.ErrLost}}
	return []*event{
		{kind: evReady, ready: &description{Info: device.Info{Name: "vulkan:0", Kind: device.Discrete}, Limits: target.DefaultLimits(),
			Budget: 9, Timer: true}},
		{kind: evReady, err: &remote{text: "no such adapter"}},
		{kind: evState, accepted: 5, moves: math.MaxUint64, fresh: 3, staging: 1 << 20},
		{kind: evDone, id: 1}, {kind: evDone, id: 2, err: lost}, {kind: evDone, id: 2, times: []time.Duration{0, time.Second}},
		{kind: evData, id: 3, at: 64, n: 4, end: 1 << 50}, {kind: evData, id: 3, last: true}, {kind: evFailed, err: lost},
	}
}

func content(m message) []byte { return appendContent(nil, m) }

func decodeCommand(b []byte) (*command, error) {
	c := &command{}
	return c, decode(b, c)
}

func decodeHello(b []byte) (*hello, error) {
	h := &hello{}
	return h, decode(b, h)
}

func decodeEvent(b []byte) (*event, error) {
	e := &event{}
	return e, decode(b, e)
}

func TestCommandsTravel(t *testing.T) {
	for _, c := range commands() {
		got, err := decodeCommand(content(c))
		require.NoError(t, err)
		assert.Equal(t, c, got)
		refusesFragments(t, content(c), func(b []byte) error { _, err := decodeCommand(b); return err })
	}
	h := &hello{token: "secret", device: "webgpu:1", up: 1 << 20, down: 4096, silence: time.Minute}
	got, err := decodeHello(content(h))
	require.NoError(t, err)
	assert.Equal(t, h, got)
	refusesFragments(t, content(h), func(b []byte) error { _, err := decodeHello(b); return err })
	b := content(h)
	b[1+4+len(magic)]++
	_, err = decodeHello(b)
	require.EqualError(t, err, "found a host of version 2, expected 1")
}

func TestEventsTravel(t *testing.T) {
	for _, e := range events() {
		got, err := decodeEvent(content(e))
		require.NoError(t, err)
		assert.Equal(t, e, got)
		refusesFragments(t, content(e), func(b []byte) error { _, err := decodeEvent(b); return err })
	}
}

// refusesFragments asserts that neither a prefix of a frame is valid, nor a frame with extra bytes.
func refusesFragments(t *testing.T, b []byte, decode func([]byte) error) {
	t.Helper()
	for n := range b {
		require.Error(t, decode(b[:n]), "%d of %d bytes", n, len(b))
	}
	require.ErrorContains(t, decode(append(b[:len(b):len(b)], 0)), "extra bytes")
}

// The causes that callers distinguish, and what an error names, survive encoding.
func TestErrorsTravel(t *testing.T) {
	for _, cause := range causes[1:] {
		sent := &device.Error{Op: "alloc", Object: "b", Device: "webgpu:0", Cause: fmt.Errorf("%w: 4 of 3", cause)}
		got, err := decodeEvent(content(&event{kind: evDone, id: 1, err: sent}))
		require.NoError(t, err)
		require.ErrorIs(t, got.err, cause)
		require.EqualError(t, got.err, sent.Error())
		var named *device.Error
		require.ErrorAs(t, got.err, &named)
		require.Equal(t, "b", named.Object)
	}
	got, err := decodeEvent(content(&event{kind: evFailed,
		err: fmt.Errorf("while: %w", &device.Error{Op: "a", Cause: device.ErrLost})}))
	require.NoError(t, err)
	require.ErrorIs(t, got.err, device.ErrLost)
	require.ErrorContains(t, got.err, "while: ")
	got, err = decodeEvent(content(&event{kind: evFailed, err: errors.New(strings.Repeat("é", 1<<20))}))
	require.NoError(t, err)
	require.LessOrEqual(t, len(got.err.Error()), maxErrorText)
}

func TestFrames(t *testing.T) {
	var stream []byte
	for _, c := range commands() {
		stream = appendFrame(stream, c)
	}
	f := frames{r: bufio.NewReader(iotest.OneByteReader(bytes.NewReader(stream)))}
	for _, c := range commands() {
		b, err := f.next()
		require.NoError(t, err)
		require.Equal(t, content(c), b)
	}
	_, err := f.next()
	require.Equal(t, io.EOF, err)

	next := func(b []byte) error { _, err := (&frames{r: bufio.NewReader(bytes.NewReader(b))}).next(); return err }
	for n := 1; n < 5; n++ {
		require.Equal(t, io.ErrUnexpectedEOF, next(appendFrame(nil, commands()[0])[:n]))
	}
	require.ErrorContains(t, next([]byte{0, 0, 0, 0}), "a frame of 0 bytes")
	require.ErrorContains(t, next([]byte{1, 0, 0, 4}), "a frame of 67108865 bytes")
}

// A large length in a header allocates no memory.
func TestPromisesTakeNoMemory(t *testing.T) {
	promise := binary.LittleEndian.AppendUint32(nil, maxFrame)
	f := frames{r: bufio.NewReader(bytes.NewReader(promise))}
	_, err := f.next()
	require.Equal(t, io.ErrUnexpectedEOF, err)
	assert.Less(t, f.buf.Cap(), 16<<10)
	load := append(content(&command{op: opUnload, id: 1}), 0, 0, 0, 0, 255, 255, 255, 127)
	load[0] = byte(opLoad)
	_, err = decodeCommand(load)
	require.Equal(t, errShort, err)
}

func FuzzCommand(f *testing.F) {
	for _, c := range commands() {
		f.Add(content(c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeCommand(b); err == nil {
			require.Equal(t, b, content(c), "one encoding each")
		}
		if h, err := decodeHello(b); err == nil {
			require.Equal(t, b, content(h))
		}
	})
}

func FuzzEvent(f *testing.F) {
	for _, e := range events() {
		f.Add(content(e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEvent(b)
		if err != nil {
			return
		}
		again, err := decodeEvent(content(e))
		require.NoError(t, err)
		require.Equal(t, content(e), content(again))
	})
}

// FuzzFrames reads arbitrary streams to their end.
func FuzzFrames(f *testing.F) {
	var stream []byte
	for _, c := range commands() {
		stream = appendFrame(stream, c)
	}
	f.Add(stream)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := frames{r: bufio.NewReader(bytes.NewReader(b))}
		for read := 0; ; {
			part, err := s.next()
			if err != nil {
				return
			}
			read += len(part) + header
			require.LessOrEqual(t, read, len(b))
		}
	})
}

func TestProgressTimeout(t *testing.T) {
	assert.Equal(t, time.Minute, progressTimeout(Options{}.silence(), 0))
	assert.Equal(t, 2*time.Minute, progressTimeout(time.Minute, 6))
	assert.Equal(t, time.Hour+time.Minute, progressTimeout(time.Hour, 6))
	assert.Equal(t, progressTimeout(time.Minute, maxFresh), progressTimeout(time.Minute, math.MaxInt64))
	longest := Options{Silence: math.MaxInt64}.silence()
	assert.Greater(t, progressTimeout(longest, math.MaxInt64), longest)
}

// Ranges of a ring never overlap, in whatever order they are allocated and freed.
func FuzzRing(f *testing.F) {
	f.Add([]byte{1, 200, 3, 0, 0, 255, 7, 0})
	f.Fuzz(func(t *testing.T, moves []byte) {
		r := ring{size: 4096}
		var held [][3]int64 // at, n, end
		for _, m := range moves {
			if m == 0 {
				if len(held) > 0 {
					require.True(t, r.put(held[0][2]))
					require.False(t, r.put(held[0][2]-1))
					held = held[1:]
				}
				continue
			}
			n := 2 * int64(m) // up to most
			at, end, ok := r.take(n)
			if !ok {
				require.NotEmpty(t, held, "an empty ring has room")
				continue
			}
			require.LessOrEqual(t, at+n, r.size)
			for _, h := range held {
				require.True(t, at >= h[0]+h[1] || h[0] >= at+n, "%d+%d and %v", at, n, h)
			}
			held = append(held, [3]int64{at, n, end})
		}
		require.False(t, r.put(r.head+1))
	})
}
