package sidecar

// ring hands out stretches of a shared memory in order, and gets them back in that order.
type ring struct {
	size       int64
	head, tail int64 // bytes that were ever handed out and returned, gaps at the end of the memory included
}

const lineBytes = 64 // stretches begin at such

// most is the longest stretch: several are under way at once.
func (r *ring) most() int64 { return r.size / 8 }

// take gives n bytes, 0 < n ≤ most: where they lie, and what to return for them. It is false when there is no room.
func (r *ring) take(n int64) (at, end int64, ok bool) {
	n = (n + lineBytes - 1) &^ (lineBytes - 1)
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

// put returns all up to end; it is false when that was not handed out, or returned before.
func (r *ring) put(end int64) bool {
	if end < r.tail || end > r.head {
		return false
	}
	r.tail = end
	return true
}
