package arrow

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A file may declare very many buffers of texts that lie in the same place.
func TestBuffersOfViewsKeepBoundedMemory(t *testing.T) {
	file := bytes.NewReader(make([]byte, 4*windowSize))
	b := &buffer{file: file, size: file.Size()}
	for _, n := range []int64{1, windowSize, 3 * windowSize} {
		text, err := b.bytes(windowSize/2, n)
		require.NoError(t, err)
		assert.Len(t, text, int(n))
		assert.LessOrEqual(t, int64(len(b.window)), b.held())
	}
	v := views{buffers: make([]*buffer, 4*maxBuffer/windowSize)}
	for i := range v.buffers {
		v.keep(i, &buffer{file: file, size: file.Size()})
		assert.LessOrEqual(t, v.held, int64(maxBuffer))
	}
	assert.NotNil(t, v.buffers[len(v.buffers)-1])
	assert.Nil(t, v.buffers[0])
	v.keep(0, &buffer{size: maxBuffer, window: []byte{1}}) // one that was compressed
	assert.Nil(t, v.buffers[len(v.buffers)-1])
}

// text is a value that shares its memory with others, as texts of a window do.
type text []byte

func (x text) text(int64) ([]byte, error) { return x[1:2:2], nil }

func TestDictionaryHasItsOwnTexts(t *testing.T) {
	window := text("abc")
	var d dictionary
	require.NoError(t, d.add(window, 1))
	window[1] = 'x'
	assert.Equal(t, "b", string(d.texts[0]))
	require.NoError(t, d.add(nulls{}, 1))
	assert.Nil(t, d.texts[1])
}
