package replicas

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Two processes send the parameters that they own of a fragment of several pieces. Together their payloads have every
// bit of the message, in each format.
func TestMessagesOfPartsAreTheWhole(t *testing.T) {
	f := fragment{name: "layers.0"}
	for _, size := range []int{700, pieceBlocks * outer.BlockSize, 5, 512} {
		from := f.blocks * blockBytes
		p := model.Parameter{Name: string(rune('a' + len(f.params))), Type: graph.T(graph.F32, size)}
		f.params = append(f.params, span{p, from, from + 4*size})
		f.blocks += (size + outer.BlockSize - 1) / outer.BlockSize
	}
	for _, format := range outer.FormatNames() {
		c := outer.Config{Format: format}
		whole := newMessage(c, f)
		for p, piece := range whole.pieces {
			for name, data := range piece {
				values := make([]float32, len(data)/4)
				for i := range values {
					values[i] = float32((i+p)%251) - 100 // bf16 has them, too
				}
				piece[name] = exec.F32Bytes(values)
			}
		}
		got := newMessage(c, f)
		for _, own := range []string{"ac", "bd"} {
			part := f.of(func(param string) bool { return param[0] == own[0] || param[0] == own[1] })
			payload := whole.encode(c, part)
			require.NoError(t, got.decode(c, part, payload), format)
			assert.ErrorContains(t, got.decode(c, part, payload), "layers.0: found "+own[:1]+" a second time", format)
			bytes := 0
			for _, tensor := range payload {
				bytes += len(tensor)
			}
			rows := 0
			for _, r := range part.rows() {
				rows += r[1] - r[0]
			}
			assert.EqualValues(t, c.Bytes(rows), bytes, format)
		}
		assert.Len(t, got.known, len(f.params))
		assert.Equal(t, whole.pieces, got.pieces, format)
	}
}
