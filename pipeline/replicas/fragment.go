package replicas

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim/outer"
)

// fragment is the parameters of the embedding, of a layer or of the head, as a matrix of blocks. Each parameter begins
// with a block.
type fragment struct {
	name   string // of the layer
	params []span
	blocks int
}

// span is the place of a parameter in a fragment, in bytes.
type span struct {
	param    model.Parameter
	from, to int
}

// fragmentsOf divides a model.
func fragmentsOf(m model.Model) []fragment {
	var fragments []fragment
	for u := range m.Units() {
		if name := m.UnitScope(u); u == 0 || name != m.UnitScope(u-1) {
			fragments = append(fragments, fragment{name: name})
		}
	}
	for _, p := range m.Parameters() {
		layer := m.UnitScope(model.UnitOf(m, p))
		f := &fragments[slices.IndexFunc(fragments, func(f fragment) bool { return f.name == layer })]
		from := f.blocks * blockBytes
		f.params = append(f.params, span{p, from, from + int(p.Type.Bytes())})
		f.blocks += (p.Type.Shape.Len() + outer.BlockSize - 1) / outer.BlockSize
	}
	return fragments
}

const blockBytes = outer.BlockSize * 4

// zeros is a matrix of the fragment.
func (f fragment) zeros() []byte { return make([]byte, f.blocks*blockBytes) }

// pieceBlocks bounds what a program works on at once, so that exchanges take little memory of a device.
const pieceBlocks = 1 << 14

// pieces are the numbers of blocks of the fragment's pieces, in order.
func (f fragment) pieces() (sizes []int) {
	for left := f.blocks; left > 0; left -= pieceBlocks {
		sizes = append(sizes, min(left, pieceBlocks))
	}
	return sizes
}

// place finds a parameter.
func place(fragments []fragment, param string) (f int, s span, ok bool) {
	for f := range fragments {
		for _, s := range fragments[f].params {
			if s.param.Name == param {
				return f, s, true
			}
		}
	}
	return 0, span{}, false
}
