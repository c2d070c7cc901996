package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/gpupipe/gpupipe/graph"
)

// chunk is how many elements are converted at a time: a multiple of BlockSize.
const chunk = 1 << 16

// floats are the types whose elements are numbers by themselves, as graphs have them.
var floats = map[Type]graph.DType{F32: graph.F32, F16: graph.F16, BF16: graph.BF16}

// EncodeFloats writes numbers as elements of a type, the nearest there are. F16, also the scale of a block, has no
// finite numbers beyond 65504: such a number is an error that names its element. So is NaN or Inf as Q8_0.
func EncodeFloats(w io.Writer, xs []float32, t Type) error {
	if as, ok := floats[t]; ok {
		return graph.EncodeFloats(w, xs, as)
	}
	switch {
	case t != Q8_0:
		return fmt.Errorf("type is %v, expected F32, F16, BF16 or Q8_0", t)
	case len(xs)%BlockSize != 0:
		return fmt.Errorf("%d elements, expected a multiple of %d for Q8_0", len(xs), BlockSize)
	}
	var buf []byte
	for at := 0; at < len(xs); at += chunk {
		buf = buf[:0]
		for i := at; i < min(at+chunk, len(xs)); i += BlockSize {
			var ok bool
			if buf, ok = appendBlock(buf, xs[i:i+BlockSize]); !ok {
				return fmt.Errorf("elements %d to %d have no scale in F16: expected finite numbers of at most %d", i, i+BlockSize-1,
					127*65504)
			}
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

const f16Infinity = 0x7c00 // bits

// appendBlock appends a block of Q8_0: the scale is the largest magnitude / 127, and halves are rounded away from zero,
// as llama.cpp does.
func appendBlock(buf []byte, xs []float32) ([]byte, bool) {
	var most float32
	for _, x := range xs {
		if x != x {
			return nil, false
		}
		most = max(most, float32(math.Abs(float64(x))))
	}
	scale := most / 127
	h := graph.F16.Bits(float64(scale))
	if h == f16Infinity {
		return nil, false
	}
	var inverse float32
	if scale != 0 {
		inverse = 1 / scale
	}
	if math.IsInf(float64(inverse), 0) { // a scale this small is 0 in F16
		inverse = 0
	}
	buf = binary.LittleEndian.AppendUint16(buf, uint16(h))
	for _, x := range xs {
		buf = append(buf, byte(int8(math.Round(float64(x*inverse)))))
	}
	return buf, true
}

// decodeFloats converts whole elements, or whole blocks, of a type to dst.
func decodeFloats(dst []float32, src []byte, t Type) {
	if t == Q8_0 {
		for b := 0; b < len(dst); b += BlockSize {
			block := src[b/BlockSize*blockBytes:]
			scale := float32(graph.F16.FromBits(uint32(binary.LittleEndian.Uint16(block))))
			for i := range BlockSize {
				dst[b+i] = scale * float32(int8(block[2+i]))
			}
		}
		return
	}
	graph.DecodeFloats(dst, src, floats[t])
}
