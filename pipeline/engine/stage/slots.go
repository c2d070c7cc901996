package stage

import "slices"

// slot holds the activations of a microbatch; uses counts the uses that are left, and 0 means that it is free.
type slot struct{ batch, microbatch, uses int }

// slots are the slots of one chunk.
type slots []slot

// take gives a microbatch the lowest free slot for some uses. It reports false if no slot is free.
func (s slots) take(batch, microbatch, uses int) bool {
	i := slices.IndexFunc(s, func(x slot) bool { return x.uses == 0 })
	if i >= 0 {
		s[i] = slot{batch, microbatch, uses}
	}
	return i >= 0
}

// find is the index of a microbatch's slot; −1 if it has none.
func (s slots) find(batch, microbatch int) int {
	return slices.IndexFunc(s, func(x slot) bool { return x.uses > 0 && x.batch == batch && x.microbatch == microbatch })
}

// release counts one use of a slot.
func (s slots) release(index int) { s[index].uses-- }
