package wasm

import (
	"context"
	"time"

	"github.com/tetratelabs/wazero/experimental"
)

// piece is how many bytes the host copies at a time. Garbage collection waits for the end of each copy.
const piece = 1 << 20

// copyPieces copies as the builtin copy does, in pieces between which the goroutine can be preempted.
func copyPieces(to, from []byte) int {
	n := min(len(to), len(from))
	for at := 0; at < n; at += piece {
		end := min(at+piece, n)
		copy(to[at:end], from[at:end])
	}
	return n
}

// linearMemory is the memory of an instance. It grows as a slice does, but the end of the call stops the growth.
type linearMemory struct {
	i    *Instance
	b    []byte
	most uint64
}

// allocating returns a context with which wazero gives the instance a linearMemory.
func allocating(ctx context.Context, i *Instance) context.Context {
	return experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(func(_, most uint64) experimental.LinearMemory {
		return &linearMemory{i: i, most: most}
	}))
}

// Reallocate returns a memory of the given size with the contents of the old one, or nil if the call has no time left.
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

// fresh returns size zero bytes, or nil if the call ends first: clearing a large memory takes long.
func (m *linearMemory) fresh(size uint64) []byte {
	if size < 32*piece || len(m.b) == 0 {
		return make([]byte, size)
	}
	made := make(chan []byte, 1)
	go func() { made <- make([]byte, size) }()
	timer := time.NewTimer(time.Until(m.i.call.Deadline))
	defer timer.Stop()
	select {
	case b := <-made:
		return b
	case <-timer.C:
	case <-m.i.call.ctx.Done():
	}
	return nil
}

// Free drops the memory.
func (m *linearMemory) Free() { m.b = nil }
