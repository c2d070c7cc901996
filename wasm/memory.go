package wasm

import (
	"context"
	"time"

	"github.com/tetratelabs/wazero/experimental"
)

// piece is how many bytes the host copies at a time: garbage collection waits for the end of a copy, however long.
const piece = 1 << 20

// copyPieces is copy, at whose pieces the goroutine can be stopped.
func copyPieces(to, from []byte) int {
	n := min(len(to), len(from))
	for at := 0; at < n; at += piece {
		end := min(at+piece, n)
		copy(to[at:end], from[at:end])
	}
	return n
}

// linearMemory is what an instance's memory lies in. It grows as a slice does, but can be stopped on the way.
type linearMemory struct {
	i    *Instance
	b    []byte
	most uint64
}

// allocating has an instance's memory made by it.
func allocating(ctx context.Context, i *Instance) context.Context {
	return experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(func(_, most uint64) experimental.LinearMemory {
		return &linearMemory{i: i, most: most}
	}))
}

// Reallocate gives a memory of the size with the old one's contents, or nil when the call has no time left.
func (m *linearMemory) Reallocate(size uint64) []byte {
	if size > uint64(cap(m.b)) {
		grown := m.fresh(min(max(size, uint64(cap(m.b))/4*5), m.most))
		if grown == nil {
			return nil
		}
		for at := 0; at < len(m.b); at += piece {
			if m.i.overdue() != nil {
				return nil
			}
			copy(grown[at:], m.b[at:min(at+piece, len(m.b))])
		}
		m.b = grown
	}
	m.b = m.b[:size]
	return m.b
}

// fresh makes zeros, which for a large memory takes so long that the call may end before: then it is nil.
func (m *linearMemory) fresh(size uint64) []byte {
	if size < 32*piece || len(m.b) == 0 {
		return make([]byte, size)
	}
	made := make(chan []byte, 1)
	go func() { made <- make([]byte, size) }()
	timer := time.NewTimer(time.Until(m.i.call.deadline))
	defer timer.Stop()
	select {
	case b := <-made:
		return b
	case <-timer.C:
	case <-m.i.call.ctx.Done():
	}
	return nil
}

// Free gives it back.
func (m *linearMemory) Free() { m.b = nil }
