package protocol_test

import (
	"bytes"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Pieces of a change that come in any order, some of them twice or forged, are the change.
func TestPiecesAreTheWhole(t *testing.T) {
	for _, size := range []int{0, 5, 64 << 10, 300_001, 5 << 20} {
		change := [][]byte{bytes.Repeat([]byte{1, 2, 3}, size), {7, 8}, {}}
		cut := protocol.Cut(change)
		got, err := protocol.Relay{Sizes: cut.Sizes}.Expect(cut.Hashes)
		require.NoError(t, err)
		for number := len(cut.All) - 1; number >= 0; number-- {
			assert.False(t, got.Complete())
			forged := append(bytes.Clone(cut.All[number]), 0)
			_, err := got.Add(number, [][]byte{forged})
			assert.ErrorContains(t, err, "another piece")
			for i := range 2 {
				added, err := got.Add(number, [][]byte{cut.All[number]})
				require.NoError(t, err)
				assert.Equal(t, i == 0, added)
			}
		}
		assert.True(t, got.Complete())
		_, err = got.Add(len(cut.All), [][]byte{{}})
		assert.ErrorContains(t, err, "no such piece")
		payload, err := got.Payload()
		require.NoError(t, err)
		require.Len(t, payload, len(change))
		for i := range change {
			assert.True(t, bytes.Equal(change[i], payload[i]))
		}
		got.Sizes = []int64{1 << 40}
		_, err = got.Payload()
		assert.ErrorContains(t, err, "are left for a tensor")
		got.Sizes = nil
		_, err = got.Payload()
		assert.ErrorContains(t, err, "follow the tensors")
	}
	_, err := protocol.Relay{}.Expect([][]byte{{1}})
	assert.ErrorContains(t, err, "a change in 1 pieces")
	_, err = protocol.Relay{}.Expect(nil)
	assert.ErrorContains(t, err, "a change in 0 pieces")
}
