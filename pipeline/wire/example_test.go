package wire_test

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/pipeline/wire"
)

// A tensor of 128 elements travels in 132 bytes instead of 512.
func Example() {
	tensor := make([]byte, 4*128)
	for i := range 128 {
		binary.LittleEndian.PutUint32(tensor[4*i:], math.Float32bits(float32(i)/64))
	}
	data := make([]byte, wire.Int8.Size(128))
	wire.Int8.Encode(data, tensor, wire.Position{Seed: 1, Batch: 17, Microbatch: 3}.Key())

	received := make([]byte, len(tensor))
	if err := wire.Int8.Decode(received, data); err != nil {
		fmt.Println(err)
	}
	x := math.Float32frombits(binary.LittleEndian.Uint32(received[4*127:]))
	fmt.Printf("%d bytes; the last element, %.3f, arrives as %.3f\n", len(data), 127.0/64, x)
	// Output: 132 bytes; the last element, 1.984, arrives as 1.984
}
