package control

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	f := frame{kind: framePiece, session: 1, instance: 2, sequence: 3, acknowledged: 4, body: []byte("x")}
	got, err := decodeFrame(f.append(nil))
	require.NoError(t, err)
	assert.Equal(t, f, got)
	_, err = decodeFrame(make([]byte, 32))
	require.EqualError(t, err, "frame: found 32 bytes, expected 33 to 131105")
}

// Messages pass through a line that loses, repeats and reorders pieces and acknowledgments as broken connections do.
func TestStreamOverABadConnection(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s sender
		var in receiver
		var sent, got []message
		for n := range 15 {
			data := make([]byte, r.IntN(9)*r.IntN(pieceSize/2+100))
			for i := 0; i < len(data); i += 100 {
				data[i] = byte(r.Uint32())
			}
			m := message{kind: messageRequest, id: uint64(n), name: "e", data: data}
			require.NoError(t, s.add(m))
			sent = append(sent, m)
		}
		for steps := 0; !s.idle(); steps++ {
			require.Less(t, steps, 100_000)
			if r.IntN(10) == 0 {
				s.rewind() // a new connection
			}
			p, ok := s.next()
			if !ok {
				s.acknowledge(in.acknowledged())
				s.rewind()
				continue
			}
			if r.IntN(5) == 0 {
				continue // lost
			}
			m, complete, missing, err := in.take(p.sequence, p.body)
			require.NoError(t, err)
			if complete {
				got = append(got, m)
				in.handled(m)
			}
			if missing || r.IntN(3) == 0 {
				s.acknowledge(in.acknowledged())
				s.rewind()
			}
		}
		require.Len(t, got, len(sent))
		for i := range sent {
			require.Equal(t, sent[i].id, got[i].id)
			require.True(t, bytes.Equal(sent[i].data, got[i].data))
		}
		assert.Zero(t, s.bytes)
		assert.Zero(t, s.inFlight)
		assert.Zero(t, in.waiting)
	}
}

func TestQueueLimit(t *testing.T) {
	t.Parallel()
	var s sender
	m := message{kind: messageRequest, name: "x", data: make([]byte, MaxMessage)}
	for range maxQueue/MaxMessage - 1 {
		require.NoError(t, s.add(m))
	}
	require.ErrorIs(t, s.add(message{kind: messageRequest, name: "x", data: make([]byte, MaxMessage)}), ErrQueueFull)
	require.ErrorContains(t, s.add(message{kind: messageRequest, name: "x", data: make([]byte, MaxMessage+1)}), "expected at most 33554432")
	inFlight := 0
	for {
		p, ok := s.next()
		if !ok {
			break
		}
		inFlight += len(p.body)
	}
	assert.LessOrEqual(t, inFlight, window+pieceSize+pieceHeader)
}

// A receiver whose handler is slow stops the sender, and one that ignores this is refused.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	var s sender
	var in receiver
	var waiting []message
	m := message{kind: messageRequest, name: "x", data: make([]byte, 1<<20)}
	for range 100 {
		require.NoError(t, s.add(m))
	}
	for {
		p, ok := s.next()
		if !ok {
			break
		}
		m, complete, _, err := in.take(p.sequence, p.body)
		require.NoError(t, err)
		if complete {
			waiting = append(waiting, m)
		}
		s.acknowledge(in.acknowledged())
	}
	assert.Less(t, in.waiting, maxQueue/2+2*window)
	assert.False(t, s.idle())
	resumed := 0
	for _, m := range waiting {
		if in.handled(m) {
			resumed++
		}
	}
	assert.Equal(t, 1, resumed)
	s.acknowledge(in.acknowledged())
	_, ok := s.next()
	assert.True(t, ok)

	in = receiver{waiting: maxQueue + 3*window}
	_, _, _, err := in.take(1, nil)
	require.ErrorIs(t, err, errWindow)
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add(frame{kind: frameHello, session: 1, body: encodeJSON(hello{Protocol: 1})}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := decodeFrame(b); err == nil && !bytes.Equal(got.append(nil), b) {
			t.Fatalf("%x: found %x", b, got.append(nil))
		}
	})
}

// FuzzPieces cuts its input into pieces of any content.
func FuzzPieces(f *testing.F) {
	piece, _ := message{kind: messageRequest, name: "x", data: []byte("data")}.appendPiece(nil, 0)
	f.Add(append(binary.BigEndian.AppendUint16(nil, uint16(len(piece))), piece...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in receiver
		for sequence := uint64(1); len(b) >= 2; sequence++ {
			n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
			m, complete, _, err := in.take(sequence, b[2:2+n])
			b = b[2+n:]
			if err != nil {
				return
			}
			if complete && (len(m.data) > MaxMessage || len(m.name) > maxName || m.kind == 0 || m.kind >= messageKinds) {
				t.Fatalf("found message %d %q of %d bytes", m.kind, m.name, len(m.data))
			}
			if cap(in.assembly.message.data) > 2*int(sequence)*pieceSize {
				t.Fatalf("found %d bytes for %d pieces", cap(in.assembly.message.data), sequence)
			}
		}
	})
}

func FuzzBodies(f *testing.F) {
	f.Add(encodeFailure(ErrQueueFull))
	f.Add(encodeJSON(bye{Text: "x", Closed: true}))
	f.Add(make([]byte, pongSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if decodeFailure("m", b).Error() == "" {
			t.Fatal("no text")
		}
		if sent, received, replied, ok := decodePong(b); ok {
			if c := clockOf(sent, received, replied, sent); c.RoundTrip < 0 {
				t.Fatalf("found %v", c)
			}
		}
	})
}
