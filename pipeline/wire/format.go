package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// Format is how the elements of a tensor are written in a message.
type Format uint8

// The formats.
const (
	F32  Format = iota // exact
	BF16               // rounded to nearest
	Int8               // rounded up or down at random, by position
)

var names = [...]string{F32: "f32", BF16: "bf16", Int8: "int8"}

func (f Format) String() string {
	if int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// Names lists the names of formats, from the most to the least exact.
func Names() []string { return names[:] }

// Parse returns the format with a name.
func Parse(name string) (Format, error) {
	for f, n := range names {
		if n == name {
			return Format(f), nil
		}
	}
	return F32, fmt.Errorf("found %q, expected one of %s", name, strings.Join(names[:], ", "))
}

const (
	tile     = 64       // elements of an int8 tile
	tileSize = 2 + tile // its bytes
)

// Size is the number of bytes of n elements.
func (f Format) Size(n int64) int64 {
	switch f {
	case BF16:
		return 2 * n
	case Int8:
		return n + 2*((n+tile-1)/tile)
	}
	return 4 * n
}

// Elements is the number of elements that size bytes hold. It returns an error if no tensor has that size.
func (f Format) Elements(size int64) (int64, error) {
	n := size / 4
	switch f {
	case BF16:
		n = size / 2
	case Int8:
		n = size/tileSize*tile + max(0, size%tileSize-2)
	}
	if size < 0 || f.Size(n) != size {
		return 0, fmt.Errorf("found %d bytes, expected the size of a tensor in %v", size, f)
	}
	return n, nil
}

// Encode writes a tensor, little-endian float32, to dst, which has the Size of its elements. key is the Key of the
// message's Position; formats that round to nearest ignore it.
func (f Format) Encode(dst, tensor []byte, key Key) {
	n := len(tensor) / 4
	if len(tensor)%4 != 0 || int64(len(dst)) != f.Size(int64(n)) {
		panic(fmt.Sprintf("wire: %d bytes of float32 to %d bytes of %v", len(tensor), len(dst), f))
	}
	switch f {
	case F32:
		copy(dst, tensor)
	case BF16:
		encodeBF16(dst, tensor)
	case Int8:
		encodeInt8(dst, tensor, key)
	}
}

// Decode writes what Encode wrote to a tensor of 4 bytes an element. It returns an error if data is nothing that Encode
// writes, or has another number of elements than the tensor.
func (f Format) Decode(tensor, data []byte) error {
	n, err := f.Elements(int64(len(data)))
	if err != nil {
		return err
	}
	if int64(len(tensor)) != 4*n {
		return fmt.Errorf("found %d elements in %v, expected %d", n, f, len(tensor)/4)
	}
	switch f {
	case F32:
		copy(tensor, data)
	case BF16:
		decodeBF16(tensor, data)
	case Int8:
		return decodeInt8(tensor, data)
	}
	return nil
}

const (
	magnitude = 1<<31 - 1       // the bits of a float32 without its sign
	infinite  = 0xff << 23      // the bits of an infinity; larger ones are NaN
	quiet     = uint32(1) << 22 // of a NaN
)

func bitsAt(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }

func put(b []byte, i int, x float32) {
	binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
}
