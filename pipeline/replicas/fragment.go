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

// of is the fragment with some of its parameters, which keep their places.
func (f fragment) of(holds func(param string) bool) fragment {
	f.params = slices.DeleteFunc(slices.Clone(f.params), func(s span) bool { return !holds(s.param.Name) })
	return f
}

// rows are the blocks of the fragment's parameters: pairs of the first and the one after the last.
func (f fragment) rows() (all [][2]int) {
	for _, s := range f.params {
		from, to := s.from/blockBytes, (s.to+blockBytes-1)/blockBytes
		if n := len(all); n > 0 && all[n-1][1] == from {
			all[n-1][1] = to
			continue
		}
		all = append(all, [2]int{from, to})
	}
	return all
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

// each visits the pieces of a fragment: their numbers, their blocks, and their bytes in a matrix.
func (f fragment) each(visit func(piece, blocks, from, to int) error) error {
	at := 0
	for i, n := range f.pieces() {
		if err := visit(i, n, at, at+n*blockBytes); err != nil {
			return err
		}
		at += n * blockBytes
	}
	return nil
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
