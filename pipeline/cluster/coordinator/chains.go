package coordinator

import (
	"bytes"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
)

// recipient is a member and what it gets of a change.
type recipient struct {
	address
	payload [][]byte
	pieces  protocol.Pieces
}

// recipientOf is a member that gets a change. Equal changes of other recipients are cut once.
func recipientOf(a address, payload [][]byte, others []recipient) recipient {
	for _, x := range slices.Backward(others) {
		if slices.EqualFunc(x.payload, payload, bytes.Equal) {
			return recipient{a, x.payload, x.pieces}
		}
	}
	return recipient{a, payload, protocol.Cut(payload)}
}

// size is the number of bytes of what the member gets.
func (r recipient) size() (bytes int64) {
	for _, tensor := range r.payload {
		bytes += int64(len(tensor))
	}
	return bytes
}

// equals reports whether another member gets the same.
func (r recipient) equals(other recipient) bool {
	return slices.Equal(r.pieces.Sizes, other.pieces.Sizes) && slices.EqualFunc(r.pieces.Hashes, other.pieces.Hashes, bytes.Equal)
}

// chainsOf divides members into some chains, or more where members do not reach each other. All members of a chain get
// the same bytes.
func chainsOf(all []recipient, first, chains int, reaches func(from, to recipient) bool) (out [][]recipient) {
	left := slices.Concat(all[first:], all[:first])
	longest := (len(all) + chains - 1) / chains
	for len(left) > 0 {
		chain := left[:1:1]
		left = left[1:]
		for len(chain) < longest {
			last := chain[len(chain)-1]
			i := slices.IndexFunc(left, func(to recipient) bool { return last.equals(to) && reaches(last, to) })
			if i < 0 {
				break
			}
			chain = append(chain, left[i])
			left = slices.Delete(slices.Clone(left), i, i+1)
		}
		out = append(out, chain)
	}
	return out
}
