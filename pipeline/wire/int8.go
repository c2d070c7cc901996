package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

const (
	most       = 126 // the largest |x|/scale of a tile: rounding goes up to 127
	mostMarked = 125 // in a tile with values that are not finite, whose codes are:
	codeInf    = 127
	codeNaN    = -128
	mark       = 1 << 31 // the sign bit of the scale as a float32

	leastScale = 0x1p-110 // 2¹⁶/scale is finite
	unit       = 1 << 16  // steps of the random number in a unit of the code
	// Above largeScale 127 × scale may exceed every float32. Decoding goes only up to the largest.
	largeScale = math.MaxFloat32 / 127
)

// scaleOf is the bits of the least bfloat16 s, at least leastScale, such that largest is at most limit·s.
func scaleOf(largest uint32, limit float32) uint32 {
	s := max(math.Float32frombits(largest)/limit, leastScale)
	return (math.Float32bits(s) + 0xffff) &^ 0xffff
}

// code is ⌊x/scale + r/2¹⁶⌋, where perScale is 2¹⁶/scale and x·perScale is cut off to an integer first.
func code(x, perScale float32, r uint64) uint32 {
	return uint32(int32(x*perScale)+int32(r&0xffff)) >> 16
}

func encodeInt8(dst, tensor []byte, key Key) {
	for group := 0; len(tensor) > 0; group += tile / 4 {
		n := min(tile, len(tensor)/4)
		encodeTile(dst[:2+n], tensor[:4*n], key, group)
		dst, tensor = dst[2+n:], tensor[4*n:]
	}
}

// encodeTile encodes the tile whose first element is 4·group.
func encodeTile(dst, tensor []byte, key Key, group int) {
	largest := largestOf(tensor)
	if largest >= infinite {
		encodeMarked(dst, tensor, key, group)
		return
	}
	scale := scaleOf(largest, most)
	binary.LittleEndian.PutUint16(dst, uint16(scale>>16))
	dst = dst[2:]
	perScale := unit / math.Float32frombits(scale)
	for len(tensor) >= 16 && len(dst) >= 4 {
		r := key.random(group)
		a, b := binary.LittleEndian.Uint64(tensor), binary.LittleEndian.Uint64(tensor[8:])
		binary.LittleEndian.PutUint32(dst, code(math.Float32frombits(uint32(a)), perScale, r)&0xff|
			code(math.Float32frombits(uint32(a>>32)), perScale, r>>16)&0xff<<8|
			code(math.Float32frombits(uint32(b)), perScale, r>>32)&0xff<<16|
			code(math.Float32frombits(uint32(b>>32)), perScale, r>>48)<<24)
		tensor, dst, group = tensor[16:], dst[4:], group+1
	}
	r := key.random(group)
	for i := range dst {
		dst[i] = byte(code(math.Float32frombits(bitsAt(tensor, i)), perScale, r>>(16*i)))
	}
}

// largestOf is the bits of the largest magnitude; the bits of NaN exceed all others.
func largestOf(tensor []byte) uint32 {
	var a, b uint32
	for len(tensor) >= 8 {
		x := binary.LittleEndian.Uint64(tensor)
		a, b = max(a, uint32(x)&magnitude), max(b, uint32(x>>32)&magnitude)
		tensor = tensor[8:]
	}
	if len(tensor) > 0 {
		a = max(a, bitsAt(tensor, 0)&magnitude)
	}
	return max(a, b)
}

// encodeMarked encodes a tile with values that are not finite.
func encodeMarked(dst, tensor []byte, key Key, group int) {
	n, largest := len(tensor)/4, uint32(0)
	for i := range n {
		if x := bitsAt(tensor, i) & magnitude; x < infinite {
			largest = max(largest, x)
		}
	}
	scale := scaleOf(largest, mostMarked)
	binary.LittleEndian.PutUint16(dst, uint16((scale|mark)>>16))
	for i := range n {
		bits := bitsAt(tensor, i)
		x, c := math.Float32frombits(bits), 0
		switch {
		case bits&magnitude > infinite:
			c = codeNaN
		case math.IsInf(float64(x), 1):
			c = codeInf
		case math.IsInf(float64(x), -1):
			c = -codeInf
		default:
			c = int(code(x, unit/math.Float32frombits(scale), key.random(group+i/4)>>(16*(i%4))))
		}
		dst[2+i] = byte(c)
	}
}

func decodeInt8(tensor, data []byte) error {
	for at := 0; len(data) > 0; at++ {
		n := min(tile, len(data)-2)
		bits := uint32(binary.LittleEndian.Uint16(data)) << 16
		if bits&magnitude >= infinite {
			return fmt.Errorf("tile %d has scale %v, expected a finite number", at, math.Float32frombits(bits))
		}
		codes, scale := data[2:2+n], math.Float32frombits(bits&magnitude)
		if bits&mark != 0 || scale > largeScale {
			decodeMarked(tensor[:4*n], codes, scale, bits&mark != 0)
		} else {
			decodeTile(tensor[:4*n], codes, scale)
		}
		data, tensor = data[2+n:], tensor[4*n:]
	}
	return nil
}

func decodeTile(tensor, codes []byte, scale float32) {
	for len(codes) >= 4 && len(tensor) >= 16 {
		c := binary.LittleEndian.Uint32(codes)
		put(tensor, 0, float32(int8(c))*scale)
		put(tensor, 1, float32(int8(c>>8))*scale)
		put(tensor, 2, float32(int8(c>>16))*scale)
		put(tensor, 3, float32(int8(c>>24))*scale)
		codes, tensor = codes[4:], tensor[16:]
	}
	for i, c := range codes {
		put(tensor, i, float32(int8(c))*scale)
	}
}

// decodeMarked decodes a tile that may be marked or have a large scale. Finite values stay finite.
func decodeMarked(tensor, codes []byte, scale float32, marked bool) {
	for i, b := range codes {
		c := int8(b)
		x := max(-math.MaxFloat32, min(math.MaxFloat32, float32(c)*scale))
		switch {
		case !marked:
		case c == codeNaN:
			x = float32(math.NaN())
		case c == codeInf || c == -codeInf:
			x = float32(math.Inf(int(c)))
		}
		put(tensor, i, x)
	}
}
