package sidecar

// ring allocates ranges of shared memory in order, and frees them in the same order.
type ring struct {
	size       int64
	head, tail int64 // bytes ever allocated and freed, with the gaps at the end of the memory
}

const alignment = 64 // bytes, of the start of a range

// most returns the size of the largest range. It is a fraction of the ring, so that several are in use at once.
func (r *ring) most() int64 { return r.size / 8 }

// take allocates n bytes, 0 < n ≤ most. It returns their position, and the position to be passed to put. ok is false if
// there is no room.
func (r *ring) take(n int64) (at, end int64, ok bool) {
	n = (n + alignment - 1) &^ (alignment - 1)
	head := r.head
	if left := r.size - head%r.size; left < n {
		head += left
	}
	if head+n-r.tail > r.size {
		return 0, 0, false
	}
	r.head = head + n
	return head % r.size, r.head, true
}

// put frees everything up to end. It reports false if end was not allocated, or was freed before.
func (r *ring) put(end int64) bool {
	if end < r.tail || end > r.head {
		return false
	}
	r.tail = end
	return true
}
