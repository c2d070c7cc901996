package column

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// abc begins with three literals; a match of 13 overlaps what it writes; five literals end the block.
var abc = append([]byte{0x39, 'a', 'b', 'c', 3, 0, 0x50}, "12345"...)

const abcText = "abcabcabcabcabca12345"

func TestLZ4Block(t *testing.T) {
	long := append([]byte{0xf0, 255, 3}, strings.Repeat("x", 15+255+3)...)
	far := append([]byte{0x1f, 'y', 1, 0, 255, 0, 0x10}, 'z')
	for want, block := range map[string][]byte{
		"":                             {0},
		abcText:                        abc,
		strings.Repeat("x", 273):       long,
		strings.Repeat("y", 275) + "z": far,
	} {
		got := make([]byte, len(want))
		require.NoError(t, LZ4Block(got, block))
		assert.Equal(t, want, string(got))
		assert.Error(t, LZ4Block(make([]byte, len(want)+1), block), "one byte more than there is")
		if len(want) > 0 {
			assert.Error(t, LZ4Block(make([]byte, len(want)-1), block), "one byte less than there is")
			assert.Error(t, LZ4Block(got, block[:len(block)-1]), "cut")
		}
	}
	for name, block := range map[string][]byte{
		"a match before the start": {0x10, 'a', 2, 0, 0x10, 'b'},
		"a match of distance 0":    {0x10, 'a', 0, 0, 0x10, 'b'},
		"half a distance":          {0x10, 'a', 1},
		"a length without an end":  {0xf0, 255, 255},
		"nothing":                  {},
	} {
		assert.Error(t, LZ4Block(make([]byte, 6), block), name)
	}
}

// frame writes blocks; a block that is stored as it is has the highest bit of its length set.
func frame(flags byte, blocks ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	b = append(b, lz4Version|flags, 0x40)
	if flags&lz4ContentSize != 0 {
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	b = append(b, 0)
	for _, block := range blocks {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(block))), block...)
		if flags&lz4BlockChecksum != 0 {
			b = append(b, 0, 0, 0, 0)
		}
	}
	b = append(b, 0, 0, 0, 0)
	if flags&lz4ContentChecksum != 0 {
		b = append(b, 0, 0, 0, 0)
	}
	return b
}

func TestLZ4Frame(t *testing.T) {
	again := []byte{0x04, byte(len(abcText)), 0, 0x10, '!'} // of the block before: its first 8 bytes
	all := byte(lz4BlockChecksum | lz4ContentSize | lz4ContentChecksum)
	for want, b := range map[string][]byte{
		abcText:                         frame(lz4Independent, abc),
		abcText + abcText:               frame(lz4Independent|all, abc, abc),
		abcText + abcText[:8] + "!":     frame(0, abc, again),
		abcText + "!" + abcText:         append(frame(0, abc), frame(all, []byte{0x10, '!'}, abc)...),
		abcText[:8] + abcText[:8] + "!": frame(0, []byte{0x80, 'a', 'b', 'c', 'a', 'b', 'c', 'a', 'b'}, []byte{0x04, 8, 0, 0x10, '!'}),
	} {
		got := make([]byte, len(want))
		require.NoError(t, LZ4Frame(got, b), want)
		assert.Equal(t, want, string(got))
		for n := range b {
			assert.Error(t, LZ4Frame(make([]byte, len(want)+1), b[:n]), "cut to %d bytes", n)
		}
	}
	stored := binary.LittleEndian.AppendUint32(frame(0)[:7], 3|lz4Stored)
	stored = append(append(stored, "abc"...), 0, 0, 0, 0)
	got := make([]byte, 3)
	require.NoError(t, LZ4Frame(got, stored))
	assert.Equal(t, "abc", string(got))
	assert.Error(t, LZ4Frame(got[:2], stored))
	assert.Error(t, LZ4Frame(make([]byte, 9), frame(lz4Independent, abc, again)), "a match in another, independent block")
	assert.ErrorContains(t, LZ4Frame(got, []byte("no frame")), "not a frame")
	assert.ErrorContains(t, LZ4Frame(got, frame(lz4Dictionary, abc)), "flags 0x41")
}

func TestLZ4Hadoop(t *testing.T) {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(abcText)))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(abc))), abc...)
	got := make([]byte, 2*len(abcText))
	require.NoError(t, LZ4Hadoop(got, append(b, b...)))
	assert.Equal(t, abcText+abcText, string(got))
	assert.Error(t, LZ4Hadoop(got, b), "half of it")
	assert.Error(t, LZ4Hadoop(got[:len(abcText)-1], b))
	assert.Error(t, LZ4Hadoop(got[:len(abcText)], b[:len(b)-1]))
}
