package replicas

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/optim/outer"
)

// Message is what a replica or the owner says of a fragment: the tensors of outer.Config.Message, piece by piece.
type Message struct {
	pieces []tensors
	known  map[string]bool // the parameters that were decoded
}

// newMessage is a message of zeros.
func newMessage(c outer.Config, f fragment) Message {
	m := Message{known: map[string]bool{}}
	for _, n := range f.pieces() {
		piece := tensors{}
		for _, t := range c.Message(n) {
			piece[t.ID] = make([]byte, t.Type.Bytes())
		}
		m.pieces = append(m.pieces, piece)
	}
	return m
}

// encode returns the message's blocks of the fragment's parameters: one tensor for each of outer.Config.Message.
// Elements of bf16 take 2 bytes.
func (m Message) encode(c outer.Config, f fragment) (payload [][]byte) {
	for _, t := range c.Message(1) {
		size := int(t.Type.Bytes())
		var data []byte
		m.visit(f, func(piece tensors, from, to int) { data = append(data, piece[t.ID][from*size:to*size]...) })
		if c.BF16() {
			data = truncatedBF16(data)
		}
		payload = append(payload, data)
	}
	return payload
}

// decode writes the blocks of the fragment's parameters from a payload. What no replica of this build sends is an
// error: it sends each parameter once.
func (m *Message) decode(c outer.Config, f fragment, payload [][]byte) error {
	for _, s := range f.params {
		if m.known[s.param.Name] {
			return fmt.Errorf("%s: found %s a second time", f.name, s.param.Name)
		}
	}
	rows := 0
	m.visit(f, func(_ tensors, from, to int) { rows += to - from })
	all := c.Message(rows)
	if len(payload) != len(all) {
		return fmt.Errorf("%s in %d tensors, expected %d", f.name, len(payload), len(all))
	}
	for i, t := range all {
		data, size := payload[i], int(t.Type.Bytes())/max(rows, 1)
		if c.BF16() {
			data = widenedBF16(data)
		}
		if int64(len(data)) != t.Type.Bytes() {
			return fmt.Errorf("%s of %s has %d bytes, expected %d", t.ID, f.name, len(payload[i]), t.Type.Bytes())
		}
		if err := checkNumbers(t.ID, f.name, data); err != nil {
			return err
		}
		m.visit(f, func(piece tensors, from, to int) {
			n := copy(piece[t.ID][from*size:to*size], data)
			data = data[n:]
		})
	}
	for _, s := range f.params {
		m.known[s.param.Name] = true
	}
	return nil
}

// visit visits the blocks of the fragment's parameters in each piece.
func (m Message) visit(f fragment, do func(piece tensors, from, to int)) {
	for _, r := range f.rows() {
		for i, piece := range m.pieces {
			first := i * pieceBlocks
			if from, to := max(r[0], first), min(r[1], first+pieceBlocks); from < to {
				do(piece, from-first, to-first)
			}
		}
	}
}

// check refuses what others would refuse.
func (m Message) check(fragment string) error {
	for _, piece := range m.pieces {
		for tensor, data := range piece {
			if err := checkNumbers(tensor, fragment, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// largest is the magnitude above which no number of an honest message lies: weights do not move that far in a period.
const largest = 1 << 16

// checkNumbers refuses f32 that are not finite, or huge.
func checkNumbers(tensor, fragment string, data []byte) error {
	if tensor == "codes" {
		return nil // all of them describe a few steps of a scale
	}
	for at := 0; at+4 <= len(data); at += 4 {
		if x := float64(math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))); !(math.Abs(x) <= largest) {
			return fmt.Errorf("%s of %s: found %v, expected at most %d in magnitude", tensor, fragment, x, largest)
		}
	}
	return nil
}

// Outlier finds a replica that says to have moved much farther in a fragment than the others have, and than its weights
// are large. It returns the index of its message, or −1.
func (o *Owner) Outlier(fragment int, messages []Message) int {
	if len(messages) < 2 {
		return -1
	}
	weights, moves := rootMeanSquare(o.base[fragment]), make([]float64, len(messages))
	for i, m := range messages {
		moves[i] = m.size(o.config)
	}
	for i, move := range moves {
		others := slices.Delete(slices.Clone(moves), i, i+1)
		slices.Sort(others)
		if move > farthest*(weights+others[len(others)/2]) {
			return i
		}
	}
	return -1
}

// farthest bounds the move of a replica in a period, in units of its weights and of the move of others.
const farthest = 100

// size is the root mean square of what the message describes, or, with scales, of the largest of each block.
func (m Message) size(c outer.Config) float64 {
	var squares, n float64
	for _, piece := range m.pieces {
		for name, data := range piece {
			if name != "codes" {
				r := rootMeanSquare(data)
				squares, n = squares+r*r*float64(len(data)), n+float64(len(data))
			}
		}
	}
	return c.Largest() * math.Sqrt(squares/max(n, 1))
}

// rootMeanSquare is the root mean square of f32.
func rootMeanSquare(data []byte) float64 {
	sum := 0.0
	for at := 0; at+4 <= len(data); at += 4 {
		x := float64(math.Float32frombits(binary.LittleEndian.Uint32(data[at:])))
		sum += x * x
	}
	return math.Sqrt(4 * sum / float64(max(len(data), 1)))
}

// truncatedBF16 encodes f32 that have the values of bf16 in two bytes each: the upper half.
func truncatedBF16(data []byte) []byte {
	out := make([]byte, 0, len(data)/2)
	for at := 0; at < len(data); at += 4 {
		out = append(out, data[at+2], data[at+3])
	}
	return out
}

// widenedBF16 decodes bf16 to f32.
func widenedBF16(data []byte) []byte {
	out := make([]byte, 0, len(data)*2)
	for at := 0; at+2 <= len(data); at += 2 {
		out = append(out, 0, 0, data[at], data[at+1])
	}
	return out
}
