package wire

import (
	"math/bits"
	"sync"
	"unsafe"
)

// Pool lends buffers, so that messages of the same sizes, step after step, allocate nothing. The zero value is ready
// for use, from several goroutines.
type Pool struct {
	classes [bits.UintSize + 1]sync.Pool // of *byte, the start of 2^class bytes
}

// Get returns n bytes of any content. Bytes that are not returned with Put are left to the garbage collector.
func (p *Pool) Get(n int) []byte {
	class := bits.Len(uint(max(n, 1) - 1))
	if start, ok := p.classes[class].Get().(*byte); ok {
		return unsafe.Slice(start, 1<<class)[:n]
	}
	return make([]byte, n, 1<<class)
}

// Put takes back a buffer of Get, which nothing uses any more.
func (p *Pool) Put(b []byte) {
	class := bits.Len(uint(max(cap(b), 1) - 1))
	if cap(b) == 1<<class {
		p.classes[class].Put(unsafe.SliceData(b))
	}
}
