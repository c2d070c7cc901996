package metrics

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bitwiseCRC is CRC-32C from its definition, one bit at a time.
func bitwiseCRC(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0x82f63b78&-(c&1)
		}
	}
	return ^c
}

// records undoes the framing and checks both checksums of each record.
func records(t *testing.T, b []byte) [][]byte {
	t.Helper()
	unmask := func(at int) uint32 {
		rot := binary.LittleEndian.Uint32(b[at:]) - 0xa282ead8
		return rot>>17 | rot<<15
	}
	var out [][]byte
	for len(b) > 0 {
		n := int(binary.LittleEndian.Uint64(b))
		require.Equal(t, bitwiseCRC(b[:8]), unmask(8))
		require.Equal(t, bitwiseCRC(b[12:12+n]), unmask(12+n))
		out = append(out, b[12:12+n])
		b = b[16+n:]
	}
	return out
}

// message decodes one protobuf message: by field, the values in order, fixed ones and varints as uint64.
func message(t *testing.T, b []byte) map[int][]any {
	t.Helper()
	out := map[int][]any{}
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		field := int(key >> 3)
		var v any
		switch key & 7 {
		case 0:
			x, n := binary.Uvarint(b)
			require.Positive(t, n)
			v, b = x, b[n:]
		case 1:
			v, b = binary.LittleEndian.Uint64(b), b[8:]
		case 2:
			size, n := binary.Uvarint(b)
			require.Positive(t, n)
			v, b = b[n:n+int(size)], b[n+int(size):]
		case 5:
			v, b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
		default:
			t.Fatalf("wire type %d", key&7)
		}
		out[field] = append(out[field], v)
	}
	return out
}

func TestEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tb")
	e, err := NewEvents(dir, 0)
	require.NoError(t, err)
	at := time.Unix(1_700_000_000, 250_000_000)
	long := make([]byte, 300) // lengths of more than one byte
	for i := range long {
		long[i] = 'x'
	}
	require.NoError(t, e.Scalars(300, at, Value{"loss/train", 2.5}, Value{string(long), math.NaN()}))
	require.NoError(t, e.Close())
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
	assert.Regexp(t, `^events\.out\.tfevents\.\d{10}\..+\.\d+\.0$`, files[0].Name())
	b, err := os.ReadFile(filepath.Join(dir, files[0].Name()))
	require.NoError(t, err)
	list := records(t, b)
	require.Len(t, list, 2)
	assert.Equal(t, "brain.Event:2", string(message(t, list[0])[3][0].([]byte)))

	event := message(t, list[1])
	assert.Equal(t, 1_700_000_000.25, math.Float64frombits(event[1][0].(uint64)))
	assert.Equal(t, uint64(300), event[2][0])
	summary := message(t, event[5][0].([]byte))
	require.Len(t, summary[1], 2)
	v := message(t, summary[1][0].([]byte))
	assert.Equal(t, "loss/train", string(v[1][0].([]byte)))
	assert.Equal(t, float32(2.5), math.Float32frombits(uint32(v[2][0].(uint64))))
	v = message(t, summary[1][1].([]byte))
	assert.Equal(t, long, v[1][0])
	assert.True(t, math.IsNaN(float64(math.Float32frombits(uint32(v[2][0].(uint64))))))
}

func TestEventsOfResumedRun(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		e, err := NewEvents(dir, 41)
		require.NoError(t, err)
		require.NoError(t, e.Close())
		assert.ErrorIs(t, e.Scalars(1, time.Now()), os.ErrClosed)
	}
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	require.NoError(t, err)
	require.Len(t, files, 2, "each its own file")
	b, err := os.ReadFile(files[1])
	require.NoError(t, err)
	list := records(t, b)
	require.Len(t, list, 2)
	event := message(t, list[1])
	assert.Equal(t, uint64(41), event[2][0])
	assert.Equal(t, uint64(1), message(t, event[7][0].([]byte))[1][0], "SessionLog.START")

	blocked := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o644))
	_, err = NewEvents(blocked, 0)
	assert.Error(t, err)
}
