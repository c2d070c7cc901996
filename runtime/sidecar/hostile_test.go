//go:build unix

package sidecar

import (
	"bufio"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// raw is the content of a frame, which is sent unchanged.
type raw []byte

func (r raw) code(c *coder) { c.b = append(c.b, r...) }

// lies are invalid messages of a worker: at its start, in place of the answer to an allocation, and in place of a read.
func lies() map[string][][]byte {
	ready := func(change func(*description)) []byte {
		x := &description{Info: device.Info{Name: "null:0"}, Limits: target.DefaultLimits()}
		change(x)
		return appendFrame(nil, &event{kind: evReady, ready: x})
	}
	good := ready(func(*description) {})
	made := appendFrame(nil, &event{kind: evDone, id: 1})
	late := func(e *event) [][]byte { return [][]byte{good, made, appendFrame(nil, e)} }
	return map[string][][]byte{
		"nothing":         nil,
		"text":            {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		"an empty frame":  {{0, 0, 0, 0}},
		"a cut length":    {{9, 0}},
		"a cut frame":     {good[:len(good)-3]},
		"a huge frame":    {{0xff, 0xff, 0xff, 0xff, 1}},
		"much promised":   {{0, 0, 0, 3, 65}},
		"unknown event":   {{1, 0, 0, 0, 9}},
		"zero alignment":  {ready(func(d *description) { d.Limits.OffsetAlignment = 0 })},
		"negative budget": {ready(func(d *description) { d.Budget = -1 })},
		"no JSON":         {appendFrame(nil, raw{byte(evReady), 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, '{'})},

		"ready again":       late(&event{kind: evReady, ready: &description{Limits: target.DefaultLimits()}}),
		"unknown answer":    late(&event{kind: evDone, id: 77}),
		"answer to nothing": late(&event{kind: evDone}),
		"unexpected data":   late(&event{kind: evData, id: 77, n: 4}),
		"data beyond":       late(&event{kind: evData, id: 2, at: 1 << 40, n: 4}),
		"data at the edge":  late(&event{kind: evData, id: 2, at: ringBytes - 4, n: 8}),
		"too much data":     late(&event{kind: evData, id: 2, n: 68}),
		"no data":           late(&event{kind: evDone, id: 2}),
		"data too short":    late(&event{kind: evData, id: 2, n: 60, last: true}),
		"done too early":    late(&event{kind: evState, accepted: 3}),
		"done and undone": {good, append(append([]byte(nil), made...), appendFrame(nil, &event{kind: evState, accepted: 1})...),
			appendFrame(nil, &event{kind: evState})},
		"a late cut frame": {good, made, {30, 0, 0, 0, byte(evState)}},
		"no more":          {good, made},
	}
}

// beHostile is a worker that accepts its host and then sends the test's messages. It runs until it is killed.
func beHostile(socket string) {
	token, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	conn, _, _, err := accept(context.Background(), socket, strings.TrimSpace(token))
	if err != nil {
		panic(err)
	}
	endWithHost()
	commands := frames{r: bufio.NewReader(conn)}
	name := os.Getenv("SIDECAR_TEST_LIE")
	for i, lie := range lies()[name] {
		if i > 0 {
			if _, err := commands.next(); err != nil {
				panic(err)
			}
		}
		_, _ = conn.Write(lie)
	}
	if strings.Contains(name, "cut") || name == "nothing" {
		conn.Close()
	}
	select {}
}

// Whatever a worker sends, its host soon gets an error, and the worker ends.
func TestHostileWorkers(t *testing.T) {
	for name := range lies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options("null")
			o.Env = []string{role + "=hostile", "SIDECAR_TEST_LIE=" + name}
			o.Silence = time.Second // the announced bytes never arrive
			began := time.Now()
			err := use(o)
			require.ErrorIs(t, err, device.ErrLost)
			t.Log(err)
			assert.Less(t, time.Since(began), grace+prompt)
		})
	}
}

// use makes a buffer and reads it.
func use(o Options) error {
	d, err := Open(o)
	if err != nil {
		return err
	}
	defer d.Close()
	b, err := d.Alloc("b", 64)
	if err != nil {
		return err
	}
	r, err := d.Read(b, 0, 64)
	if err != nil {
		return err
	}
	_, err = r.Wait()
	return err
}

// server is a worker's side in this process.
type server struct {
	socket, token string
	ended         chan error
}

func serve(t *testing.T, ctx context.Context, open func(string) (device.Device, error)) *server {
	socket, err := newSocket()
	require.NoError(t, err)
	s := &server{socket, "0123456789abcdef", make(chan error, 1)}
	go func() { s.ended <- serveOnce(ctx, socket, s.token, open) }()
	return s
}

// openNull opens a device without a clock.
func openNull(string) (device.Device, error) {
	return untimed{null.New(null.Options{MemoryBudget: 1 << 30})}, nil
}

// end returns the error of serving. It must end soon and leave no files.
func (s *server) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.ended:
		_, gone := os.Stat(s.socket)
		assert.ErrorIs(t, gone, os.ErrNotExist)
		return err
	case <-time.After(grace + prompt):
		t.Fatal("it goes on serving")
		return nil
	}
}

// client is a host that sends the frames of the tests.
type client struct {
	*net.UnixConn
	frames frames
	memory *memory
}

func (s *server) dial(t *testing.T) *client {
	t.Helper()
	var conn *net.UnixConn
	require.Eventually(t, func() bool {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.socket, Net: "unix"})
		conn = c
		return err == nil
	}, prompt, time.Millisecond)
	t.Cleanup(func() { conn.Close() })
	return &client{UnixConn: conn, frames: frames{r: bufio.NewReader(conn)}}
}

func (c *client) say(m message) { _, _ = c.Write(appendFrame(nil, m)) } // it may have been cut off

// next is the next event that is not a state.
func (c *client) next(t *testing.T) *event {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(prompt))
	for {
		b, err := c.frames.next()
		require.NoError(t, err)
		e, err := decodeEvent(b)
		require.NoError(t, err)
		if e.kind != evState {
			return e
		}
	}
}

func (s *server) hello() *hello {
	return &hello{token: s.token, device: "null", up: ringBytes, down: ringBytes, silence: time.Minute}
}

// greeted returns a client that was accepted.
func (s *server) greeted(t *testing.T) *client {
	t.Helper()
	c := s.dial(t)
	m, f, err := newMemory(ringBytes, ringBytes)
	require.NoError(t, err)
	defer f.Close()
	c.memory = m
	t.Cleanup(func() { assert.NoError(t, m.close()) })
	c.greet(t, s.hello(), f)
	e := c.next(t)
	require.Equal(t, evReady, e.kind)
	require.NoError(t, e.err)
	return c
}

func (c *client) greet(t *testing.T, m message, files ...*os.File) {
	t.Helper()
	var control []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		control = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(appendFrame(nil, m), control, nil)
	require.NoError(t, err)
}

// A client without the token or the shared memory is refused. The host that connects after it is accepted.
func TestRefusedClients(t *testing.T) {
	t.Parallel()
	plain, err := os.Create(t.TempDir() + "/f")
	require.NoError(t, err)
	defer plain.Close()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	s := serve(t, t.Context(), openNull)
	other := s.hello()
	other.token = "0123456789abcdeF"
	s.dial(t).greet(t, other, plain)
	s.dial(t).Close()
	s.dial(t).say(raw("GET / HTTP/1.1"))
	s.dial(t).greet(t, raw{byte(opHello)})
	s.dial(t).greet(t, s.hello())
	s.dial(t).greet(t, s.hello(), plain, plain)
	s.dial(t).greet(t, s.hello(), plain, plain, plain, plain, plain, plain, plain) // more than there is room for
	s.dial(t).greet(t, raw(make([]byte, longestHello)))
	silent := s.dial(t)
	c := s.greeted(t)
	_, err = os.Stat(s.socket)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = net.Dial("unix", s.socket)
	assert.Error(t, err, "a second host")
	silent.Close()
	c.Close()
	require.NoError(t, s.end(t))

	for name, f := range map[string]*os.File{"unsealed": plain, "a pipe": r} {
		s := serve(t, t.Context(), openNull)
		require.NoError(t, plain.Truncate(2*ringBytes))
		s.dial(t).greet(t, s.hello(), f)
		if name == "a pipe" || runtime.GOOS == "linux" { // elsewhere there are no seals
			assert.ErrorContains(t, s.end(t), "shared memory", name)
		}
	}
	for _, size := range []int64{0, 4095, 1 << 40, ringBytes / 2} {
		s := serve(t, t.Context(), openNull)
		m, f, err := newMemory(ringBytes, ringBytes)
		require.NoError(t, err)
		require.NoError(t, m.close())
		h := s.hello()
		h.down = size
		s.dial(t).greet(t, h, f)
		f.Close()
		assert.ErrorContains(t, s.end(t), "shared memory", size)
	}
}

// Invalid commands end the connection, and nothing is carried out unchecked.
func TestHostileHosts(t *testing.T) {
	program := func(b uint64) *device.Program { return contract.Increments(handle(b), 1) }
	alloc := &command{op: opAlloc, id: 1, label: "b", n: 1024}
	load := &command{op: opLoad, id: 2, program: program(1)}
	for name, c := range map[string]struct {
		say  []message
		want string
	}{
		"unknown command": {[]message{raw{200, 0, 0, 0, 0, 0, 0, 0, 0}}, "unknown command"},
		"cut command":     {[]message{raw{byte(opRun), 1}}, "ends early"},
		"long command":    {[]message{raw(append(content(&command{op: opRun, id: 1}), 1))}, "extra bytes"},
		"hello again":     {[]message{&hello{}}, "unknown command"}, "empty": {[]message{raw{}}, "0 bytes"},
		"unknown program":     {[]message{&command{op: opRun, id: 1}}, "an unknown buffer or program"},
		"a buffer is run":     {[]message{alloc, &command{op: opRun, id: 1}}, "an unknown buffer or program"},
		"timed without clock": {[]message{alloc, load, &command{op: opTimed, id: 3, buffer: 2}}, "an unknown buffer or program"},
		"unknown buffer":      {[]message{&command{op: opFree, id: 1}}, "an unknown buffer or program"},
		"released twice":      {[]message{alloc, &command{op: opFree, id: 1}, &command{op: opFree, id: 1}}, "an unknown buffer or program"},
		"unloaded twice": {[]message{alloc, load, &command{op: opUnload, id: 2}, &command{op: opUnload, id: 2}},
			"an unknown buffer or program"},
		"read of unknown":      {[]message{&command{op: opRead, id: 9, buffer: 9, n: 4}}, "an unknown buffer or program"},
		"write of unknown":     {[]message{&command{op: opWrite, buffer: 9, n: 4}}, "an unknown buffer or program"},
		"write outside":        {[]message{alloc, &command{op: opWrite, buffer: 1, n: 8, at: ringBytes - 4}}, "within a ring of"},
		"write far outside":    {[]message{alloc, &command{op: opWrite, buffer: 1, n: 1 << 62, at: 1 << 62}}, "within a ring of"},
		"load of unknown":      {[]message{alloc, &command{op: opLoad, id: 2, program: program(7)}}, "an unknown buffer or program"},
		"same number":          {[]message{alloc, alloc}, "two buffers"},
		"same program":         {[]message{alloc, load, load}, "two programs"},
		"read more than there": {[]message{&command{op: opTaken, at: 64}}, "was not written"},
		"many shaders":         {[]message{raw{byte(opLoad), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 127}}, "ends early"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, t.Context(), openNull)
			client := s.greeted(t)
			for _, m := range c.say {
				client.say(m)
			}
			err := s.end(t)
			require.ErrorContains(t, err, "the host: ")
			assert.ErrorContains(t, err, c.want)
		})
	}
}

// The connection stays usable after errors of the device.
func TestMisuseBeyondTheHost(t *testing.T) {
	s := serve(t, t.Context(), openNull)
	c := s.greeted(t)
	c.say(&command{op: opAlloc, id: 1, label: "b", n: 1024})
	require.NoError(t, c.next(t).err)
	for _, n := range []int64{-4, 0, 6, 1 << 62} {
		c.say(&command{op: opAlloc, id: 2, n: n})
		require.ErrorIs(t, c.next(t).err, device.ErrValidation)
	}
	for _, at := range [][2]int64{{0, -4}, {-4, 8}, {2, 4}, {1020, 8}, {1 << 62, 1 << 62}, {0, 1 << 62}} {
		c.say(&command{op: opRead, id: 2, buffer: 1, offset: at[0], n: at[1]})
		require.ErrorIs(t, c.next(t).err, device.ErrValidation)
	}
	c.say(&command{op: opWrite, buffer: 1, offset: 1020, n: 8})
	e := c.next(t)
	require.Equal(t, evFailed, e.kind)
	require.ErrorIs(t, e.err, device.ErrValidation)
	p := contract.Increments(handle(1), 1)
	p.Commands[0].Args[0].Size = 4096
	c.say(&command{op: opLoad, id: 3, program: p})
	require.ErrorIs(t, c.next(t).err, device.ErrValidation)
	p.Commands[0].Args[0].Size = 256
	c.say(&command{op: opLoad, id: 3, program: p})
	require.NoError(t, c.next(t).err)
	c.say(&command{op: opFree, id: 1})
	c.say(&command{op: opRun, id: 3})
	require.ErrorIs(t, c.next(t).err, device.ErrValidation)
	c.say(&command{op: opClose, id: 4})
	require.NoError(t, c.next(t).err)
	require.NoError(t, s.end(t))
}

// A host that sends more than the window allows is disconnected.
func TestHostsWithoutMeasure(t *testing.T) {
	large := &device.Program{Shaders: []device.Shader{{Source: strings.Repeat("x", maxFrame-1000)}}}
	for want, c := range map[string]struct {
		m message
		n int
	}{
		"more than 256 commands in transit": {&command{op: opRun, id: 2}, window + 3},
		"bytes of commands in transit":      {&command{op: opLoad, id: 3, program: large}, 3},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			s := serve(t, t.Context(), func(string) (device.Device, error) { return openTest("hangs run") })
			client := s.greeted(t)
			client.say(&command{op: opAlloc, id: 1, n: 1024})
			client.say(&command{op: opLoad, id: 2, program: contract.Increments(handle(1), 1)})
			client.say(&command{op: opRun, id: 2})
			for range c.n {
				client.say(c.m)
			}
			require.ErrorContains(t, s.end(t), want)
		})
	}
}

// A host that reads no answers makes its worker wait, without growing memory.
func TestHostThatTakesNothing(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return int64(memory.HeapAlloc)
	}
	before := heap() // earlier tests may have left something
	s := serve(t, t.Context(), openNull)
	c := s.greeted(t)
	c.say(&command{op: opAlloc, id: 1, n: 16 << 20})
	for i := range 250 { // 4 GB
		c.say(&command{op: opRead, id: uint64(i + 10), buffer: 1, n: 16 << 20})
	}
	time.Sleep(200 * time.Millisecond)
	assert.Less(t, heap()-before, int64(128<<20))
	began := time.Now()
	c.Close()
	require.NoError(t, s.end(t))
	assert.Less(t, time.Since(began), prompt)
}

// Serving ends with its context, with a host that is gone while the device hangs, and without a host.
func TestServingEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := serve(t, ctx, openNull)
	time.Sleep(20 * time.Millisecond)
	cancel()
	require.ErrorIs(t, s.end(t), context.Canceled)

	ctx, cancel = context.WithCancel(t.Context())
	s = serve(t, ctx, openNull)
	s.greeted(t)
	cancel()
	require.NoError(t, s.end(t))

	s = serve(t, t.Context(), func(string) (device.Device, error) { select {} })
	c := s.dial(t)
	m, f, err := newMemory(ringBytes, ringBytes)
	require.NoError(t, err)
	defer f.Close()
	defer m.close()
	c.greet(t, s.hello(), f)
	time.Sleep(20 * time.Millisecond)
	c.Close()
	require.NoError(t, s.end(t))

	require.ErrorContains(t, serveOnce(t.Context(), "/no/such/folder/socket", "0123456789abcdef", openNull), "no such file")
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	require.ErrorContains(t, serveOnce(t.Context(), dir+"/socket", "0123456789abcdef", openNull), "only its owner can enter")
	require.ErrorContains(t, serveOnce(t.Context(), dir+"/a/socket", "short", openNull), "a token of 5 bytes")
	long := dir + "/" + strings.Repeat("a", 110) + "/socket"
	require.ErrorContains(t, serveOnce(t.Context(), long, "0123456789abcdef", openNull), "expected at most 103: "+long)
	require.NoDirExists(t, filepath.Dir(long))
	require.ErrorContains(t, Work(t.Context(), strings.NewReader(""), dir+"/a/socket", openNull), "no token")
	assert.NoDirExists(t, dir+"/a")
}

// serveOnce is attend without a call when the socket has been removed.
func serveOnce(ctx context.Context, socket, token string, open func(name string) (device.Device, error)) error {
	return attend(ctx, socket, token, open, func() {})
}
