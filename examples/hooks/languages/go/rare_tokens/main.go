//go:build wasip1

// Rare tokens count more: a target that has been seen n times before weighs 1/√(1 + n), and no less than least. The
// counts are the module's state, which checkpoints keep. Tokens whose numbers differ by a multiple of 65,536 are
// counted together.
//
// Config: least (0.1).
package main

import (
	"encoding/binary"
	"math"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/state"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/tokenweights"
)

var (
	seen  []uint32
	least float64
)

func init() {
	gpupipe.Open(open)
	state.Use(save, load)
	tokenweights.Use(weigh)
}

func open() {
	seen = make([]uint32, 1<<16)
	least = gpupipe.Config().Number("least", 0.1)
}

func weigh(b *gpupipe.Batch) {
	for i, target := range b.Targets {
		n := &seen[target%uint32(len(seen))]
		b.Weights[i] = float32(float64(b.Weights[i]) * max(least, 1/math.Sqrt(1+float64(*n))))
		*n++
	}
}

func save() (bytes []byte) {
	for _, n := range seen {
		bytes = binary.LittleEndian.AppendUint32(bytes, n)
	}
	return bytes
}

func load(bytes []byte) {
	if len(bytes) != 4*len(seen) {
		gpupipe.Fail("the state is another module's")
		return
	}
	for i := range seen {
		seen[i] = binary.LittleEndian.Uint32(bytes[4*i:])
	}
}

func main() {}
