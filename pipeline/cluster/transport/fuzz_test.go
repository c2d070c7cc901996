package transport

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
)

func reader(b []byte) *mem.Reader { return mem.BufferSlice{mem.SliceBuffer(b)}.Reader() }

// encode returns all fragments of a message as they travel.
func encode(m Message, sequence uint64) [][]byte {
	var all [][]byte
	for k := range fragmentsOf(m) {
		all = append(all, encodeFragment(m, sequence+k, k).Materialize())
	}
	return all
}

// FuzzFragments gives an assembler fragments that come from a peer, each with a length of 4 bytes before it. No input
// may make it panic or hold more than its limit; what it accepts must be what the fragments say.
func FuzzFragments(f *testing.F) {
	const limit = 1 << 20
	seed := func(fragments ...[]byte) {
		var b []byte
		for _, fragment := range fragments {
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(fragment))), fragment...)
		}
		f.Add(b)
	}
	seed(encode(message(Hot, 0, 100), 0)...)
	seed(fragment(0, 0, 10, 10, 10), append(binary.LittleEndian.AppendUint64([]byte{nextFragment}, 1), make([]byte, 10)...))
	seed(append(encode(message(Hot, 0, 0), 0), encode(message(Hot, 1, 9), 1)...)...)
	seed(fragment(0, 0, 10, 2<<30))
	seed(fragment(0, 0, 10, 1<<63, 1<<63, 20))
	seed(fragment(0, maxHeader+1, 0))
	seed(fragment(7, 0, 0), []byte{nextFragment}, nil)
	seed(fragment(0, 0, 10, 20), encodeLast(1).Materialize(), encode(message(Hot, 0, 9), 2)[0])
	f.Fuzz(func(t *testing.T, b []byte) {
		a := &assembler{limit: limit}
		for len(b) >= 4 {
			n := min(int(binary.LittleEndian.Uint32(b)), len(b)-4)
			one := b[4 : 4+n]
			b = b[4+n:]
			before := a.next
			m, complete, err := a.accept(reader(one))
			held := int64(0)
			for _, tensor := range append(a.message.Payload, m.Payload...) {
				held += int64(cap(tensor))
			}
			require.LessOrEqual(t, held, int64(limit))
			if err != nil {
				require.Equal(t, before, a.next)
				return
			}
			require.LessOrEqual(t, a.next, before+1)
			if complete {
				require.NoError(t, checkMessage(m, limit))
			}
			if complete && one[0] == firstFragment && fragmentsOf(m) == 1 {
				require.Equal(t, one, encodeFragment(m, before, 0).Materialize())
			}
		}
	})
}

// FuzzControl decodes a control message and encodes it again.
func FuzzControl(f *testing.F) {
	h := hello{version: protocolVersion, from: "a", to: "b", epoch: 3, incarnation: 4, known: 9, greeting: []byte("x"),
		received: [classes]uint64{5, 6}}
	for _, b := range [][]byte{h.encode(), h.encodeWelcome(), encodeAck(h.received), ping{sent: 7, answered: 8}.encode(),
		ping{pong: true}.encode(), refusalf(codeAbort, "no").encode(), {kindHello, 9, 0}, {kindRefusal, 0, 0, 0, 0, 255, 255}, {}} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeControl(b)
		if err != nil {
			return
		}
		var again []byte
		switch m := m.(type) {
		case hello:
			if m.version != protocolVersion {
				return
			}
			again = m.encode()
		case welcome:
			again = hello(m).encodeWelcome()
		case acknowledgment:
			again = encodeAck(m)
		case ping:
			again = m.encode()
		case *Refusal:
			again = m.encode()
		}
		require.Equal(t, b, again)
	})
}

// TestAssemblerAcceptsFragmentsAgain gives an assembler random messages, some of whose fragments come again.
func TestAssemblerAcceptsFragmentsAgain(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	a := &assembler{limit: 1 << 20}
	var stream [][]byte
	var want, got []Message
	for n := range 20 {
		m := message(Bulk, n, random.IntN(3*fragmentPayload))
		stream = append(stream, encode(m, uint64(len(stream)))...)
		want = append(want, m)
	}
	for i := 0; i < len(stream); i++ {
		m, complete, err := a.accept(reader(stream[i]))
		require.NoError(t, err)
		if complete {
			got = append(got, m)
		}
		if random.IntN(3) == 0 {
			i = max(-1, i-random.IntN(4)) // a new connection
		}
	}
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].Header, got[i].Header)
		require.Equal(t, bytes.Join(want[i].Payload, nil), bytes.Join(got[i].Payload, nil))
	}
}
