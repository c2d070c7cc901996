package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// memory is a session and a device in one, whose variables are byte slices. It copies when the copy is waited for, as
// late as a device may.
type memory struct {
	Session
	device.Device
	variables map[string]*variable
	fail      error // of the next operation
}

type variable struct {
	device.Buffer
	bytes []byte
}

func (v *variable) Size() int64 { return int64(len(v.bytes)) }

type pendingCopy func() ([]byte, error)

func (p pendingCopy) Wait() ([]byte, error) { return p() }

func (m *memory) ReadAt(name string, _ exec.Binding) (device.Pending, error) {
	return pendingCopy(func() ([]byte, error) { return bytes.Clone(m.variables[name].bytes), nil }), m.fail
}

func (m *memory) WriteAt(name string, _ exec.Binding, data []byte) error {
	copy(m.variables[name].bytes, data)
	return m.fail
}

func (m *memory) Buffer(name string, _ exec.Binding) (device.Buffer, error) {
	return m.variables[name], nil
}

func (m *memory) ImportAlignment() int64 { return 1 }

func (m *memory) Import(string, []byte, func()) (device.Buffer, error) { panic("not used") }

func (m *memory) Transfer(from, to device.Range) (device.Pending, error) {
	return pendingCopy(func() ([]byte, error) {
		bytes := func(r device.Range) []byte { return r.Buffer.(*variable).bytes[r.Offset : r.Offset+r.Size] }
		copy(bytes(to), bytes(from))
		return nil, nil
	}), m.fail
}

func (m *memory) Close() error { return nil }

func (m *memory) port() port { return port{m, m} }

func newMemory(variables ...string) *memory {
	m := &memory{variables: map[string]*variable{}}
	for _, v := range variables {
		m.variables[v[:1]] = &variable{bytes: []byte(v[1:])}
	}
	return m
}

// stagedChannel has one staging buffer of 8 bytes.
func stagedChannel() *channel {
	c := &channel{idle: make(chan *stagingBuffer, 1)}
	shared := &variable{bytes: make([]byte, 8)}
	c.buffers = []*stagingBuffer{{Mapping: &host.Mapping{}, channel: c, sender: shared, receiver: shared}}
	c.buffers[0].free()
	return c
}

func waitAll(t *testing.T, pending []device.Pending) (results [][]byte) {
	t.Helper()
	for _, p := range pending {
		b, err := p.Wait()
		require.NoError(t, err)
		results = append(results, b)
	}
	return results
}

var (
	someMessage = stage.Message{Kind: stage.Contribution, Batch: 2, From: 3}
	someTensors = tensors([]string{"a", "b"}, nil)
	twoTensors  = []string{"a1234", "b56"}
)

// A transfer passes through its states in order, prints them, and moves the payload, with a staging buffer and without.
func TestTransfersMoveTheirPayload(t *testing.T) {
	for how, c := range map[string]struct {
		channel *channel
		suffix  string // of its text before the read ends, while the payload is on its way, and at the end
		onWay   string
		writes  int
	}{
		"staged":   {stagedChannel(), ", staged", ", staged", 2},
		"as bytes": {nil, "", ", 6 bytes", 0},
	} {
		t.Run(how, func(t *testing.T) {
			from, to := newMemory(twoTensors...), newMemory("a....", "b..")
			x := newTransfer(someMessage, c.channel, encoding{})
			assert.Equal(t, "contribution 2 from rank 3: created"+c.suffix, x.String())

			reads, err := x.read(from.port(), someTensors)
			require.NoError(t, err)
			assert.Len(t, reads, 2)
			assert.Equal(t, "contribution 2 from rank 3: reading"+c.suffix, x.String())

			x.depart(waitAll(t, reads))
			assert.Equal(t, "contribution 2 from rank 3: in flight"+c.onWay, x.String())
			from.variables["a"].bytes[0] = '!' // the sender goes on

			x.receive()
			assert.Equal(t, "contribution 2 from rank 3: received"+c.onWay, x.String())

			writes, err := x.write(to.port(), someTensors)
			require.NoError(t, err)
			assert.Len(t, writes, c.writes)
			assert.Equal(t, "contribution 2 from rank 3: writing"+c.onWay, x.String())
			if c.channel != nil {
				assert.Empty(t, c.channel.idle, "the staging buffer is in use until the copies have ended")
			}
			waitAll(t, writes)
			x.complete()
			assert.Equal(t, "contribution 2 from rank 3: completed"+c.suffix, x.String())
			assert.Equal(t, "1234", string(to.variables["a"].bytes))
			assert.Equal(t, "56", string(to.variables["b"].bytes))
			if c.channel != nil {
				assert.Len(t, c.channel.idle, 1)
			}
		})
	}
}

// While the staging buffer of a channel is in use, further transfers pass as bytes.
func TestTransfersShareAChannel(t *testing.T) {
	c := stagedChannel()
	first, second := newTransfer(someMessage, c, encoding{}), newTransfer(someMessage, c, encoding{})
	assert.NotNil(t, first.staging)
	assert.Nil(t, second.staging)
	m := newMemory(twoTensors...)
	for _, x := range []*transfer{first, second} {
		reads, err := x.read(m.port(), someTensors)
		require.NoError(t, err)
		x.depart(waitAll(t, reads))
		x.receive()
		writes, err := x.write(m.port(), someTensors)
		require.NoError(t, err)
		waitAll(t, writes)
		x.complete()
	}
	assert.NotNil(t, newTransfer(someMessage, c, encoding{}).staging)
}

// Each receiver of a payload has a transfer of its own, and keeps the payload on the host if it wants to.
func TestTransfersToSeveralReceivers(t *testing.T) {
	x := newTransfer(stage.Message{Kind: stage.NormSquares}, nil, encoding{})
	reads, err := x.read(newMemory("a1234").port(), someTensors[:1])
	require.NoError(t, err)
	x.depart(waitAll(t, reads))
	for range 2 {
		r := x.forReceiver()
		r.receive()
		assert.Equal(t, "1234", string(r.consume()))
		assert.Equal(t, completed, r.state)
	}
	assert.Equal(t, inFlight, x.state)
}

// A step out of order is a bug of the worker, not an error.
func TestTransfersPanicOutOfOrder(t *testing.T) {
	m := newMemory(twoTensors...)
	steps := []func(*transfer){
		func(x *transfer) { _, _ = x.read(m.port(), someTensors) },
		func(x *transfer) { x.depart([][]byte{{1}, {2}}) },
		func(x *transfer) { x.receive() },
		func(x *transfer) { _, _ = x.write(m.port(), someTensors) },
		func(x *transfer) { x.complete() },
	}
	for done := range len(steps) + 1 {
		for next, step := range steps {
			x := newTransfer(someMessage, nil, encoding{})
			for _, s := range steps[:done] {
				s(x)
			}
			text := fmt.Sprintf("engine: transfer of %v: cannot become %v", x, transferState(next+1))
			if next == done {
				assert.NotPanics(t, func() { step(x) })
			} else {
				assert.PanicsWithValue(t, text, func() { step(x) })
			}
		}
	}
}

// An error names the message and the state.
func TestTransferErrors(t *testing.T) {
	failure := errors.New("device lost")
	for how, c := range map[string]*channel{", staged": stagedChannel(), "": nil} {
		m := newMemory(twoTensors...)
		m.fail = failure
		x := newTransfer(someMessage, c, encoding{})
		_, err := x.read(m.port(), someTensors)
		require.ErrorIs(t, err, failure)
		assert.EqualError(t, err, "transfer of contribution 2 from rank 3: reading"+how+": device lost")

		x = &transfer{message: someMessage, state: received, staging: x.staging, payload: [][]byte{{1}, {2}}}
		_, err = x.write(m.port(), someTensors)
		require.ErrorIs(t, err, failure)
		assert.ErrorContains(t, err, "transfer of contribution 2 from rank 3: writing")
	}
}
