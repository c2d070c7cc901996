package protocol

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
)

// Pieces are a change, cut into pieces of about the same size, so that a member relays the first while others are on
// their way to it.
type Pieces struct {
	Sizes  []int64  // of the change's tensors
	Hashes [][]byte // of the pieces
	All    [][]byte
}

const (
	leastPiece = 64 << 10
	mostPieces = 32
)

// Cut cuts the tensors of a change.
func Cut(payload [][]byte) (p Pieces) {
	whole := slices.Concat(payload...)
	for _, tensor := range payload {
		p.Sizes = append(p.Sizes, int64(len(tensor)))
	}
	n := min(max(1, len(whole)/leastPiece), mostPieces)
	for i := range n {
		piece := whole[len(whole)*i/n : len(whole)*(i+1)/n]
		hash := sha256.Sum256(piece)
		p.All, p.Hashes = append(p.All, piece), append(p.Hashes, hash[:])
	}
	return p
}

// Compare orders pieces: older changes first.
func (h Piece) Compare(other Piece) int {
	return cmp.Or(cmp.Compare(h.Step, other.Step), cmp.Compare(h.Fragment, other.Fragment), cmp.Compare(h.Number, other.Number))
}

// Expect returns pieces that have not come.
func (h Relay) Expect(payload [][]byte) (Pieces, error) {
	n := len(payload)
	if n == 0 || n > mostPieces || slices.ContainsFunc(payload, func(hash []byte) bool { return len(hash) != sha256.Size }) {
		return Pieces{}, fmt.Errorf("a change in %d pieces, expected 1 to %d with hashes of %d bytes", n, mostPieces, sha256.Size)
	}
	return Pieces{h.Sizes, payload, make([][]byte, n)}, nil
}

// Fits reports whether any change may have such a piece.
func (h Piece) Fits(payload [][]byte) bool {
	return h.Number >= 0 && h.Number < mostPieces && len(payload) == 1 && len(payload[0]) > 0
}

// Add adds a piece. It returns an error if its hash is another one than was announced, and reports whether it is new.
func (p Pieces) Add(number int, payload [][]byte) (added bool, err error) {
	if number < 0 || number >= len(p.All) || len(payload) != 1 {
		return false, errors.New("no such piece")
	}
	if hash := sha256.Sum256(payload[0]); !bytes.Equal(hash[:], p.Hashes[number]) {
		return false, errors.New("another piece")
	}
	added = p.All[number] == nil
	p.All[number] = payload[0]
	return added, nil
}

// Complete reports whether all pieces have come.
func (p Pieces) Complete() bool {
	return !slices.ContainsFunc(p.All, func(piece []byte) bool { return piece == nil })
}

// Payload returns the tensors of the change, whose pieces are complete.
func (p Pieces) Payload() (payload [][]byte, err error) {
	whole := slices.Concat(p.All...)
	for _, size := range p.Sizes {
		if size < 0 || size > int64(len(whole)) {
			return nil, fmt.Errorf("pieces of %d bytes are left for a tensor of %d", len(whole), size)
		}
		payload, whole = append(payload, whole[:size:size]), whole[size:]
	}
	if len(whole) > 0 {
		return nil, fmt.Errorf("%d bytes follow the tensors of a change", len(whole))
	}
	return payload, nil
}
