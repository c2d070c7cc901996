package stage

import (
	"fmt"
	"slices"
)

// buffers assigns the buffers of a rank's parameters to batches, as the package comment describes. A batch has a buffer
// of weights from its first action, and one of gradients as soon as one is free.
type buffers struct {
	delay    int
	stale    int   // with a delay: backwards of a batch that are stale
	all      []int // sorted
	versions []int // of the weights of batches to come, in order: with a delay, of their stale microbatches
	free     []int // for the gradients of batches to come, in order
}

func newBuffers(r Roles, delay, stale int) *buffers {
	all := []int{r.Older, r.Newest, r.Gradients}
	slices.Sort(all)
	return &buffers{delay: delay, stale: stale, all: slices.Compact(all), versions: []int{r.Older, r.Newest}[:1+delay],
		free: []int{r.Gradients}}
}

// begin gives a batch its weights. An evaluation leaves them to the next batch.
func (b *buffers) begin(x *batch) {
	x.weights, x.stale = b.versions[0], b.stale
	if !x.evaluates {
		b.versions = b.versions[1:]
	}
}

// current is, with a delay, the buffer of the weights x_t that the microbatches of batch t read if they are not stale.
// The stale ones of the next batch read the same. It is −1 until the update that makes x_t is done.
func (b *buffers) current(x *batch, inProgress []*batch) int {
	if next := slices.Index(inProgress, x) + 1; next < len(inProgress) {
		return inProgress[next].weights
	}
	if len(b.versions) == 0 {
		return -1
	}
	return b.versions[0]
}

// claim gives a batch a buffer for its gradients, unless it has or needs none, or none is free. It reports whether it
// did.
func (b *buffers) claim(x *batch) bool {
	if x.gradients >= 0 || x.evaluates || len(b.free) == 0 {
		return false
	}
	x.gradients, b.free = b.free[0], b.free[1:]
	return true
}

// endStale counts a stale backward of a batch. After the last one the buffer of the weights that it reads is free for
// gradients. The update of the batch before may still read these weights: it is done before the batch begins that may
// claim the buffer. It reports whether the backward was the last one.
func (b *buffers) endStale(x *batch) bool {
	if x.stale--; x.stale > 0 {
		return false
	}
	b.free = append(b.free, x.weights)
	return true
}

// finish gives the buffer of a batch's new weights to the batch that will read them.
func (b *buffers) finish(x *batch) {
	switch {
	case x.evaluates:
	case b.delay == 1:
		b.versions = append(b.versions, x.gradients)
	default:
		b.versions, b.free = append(b.versions, x.weights), append(b.free, x.gradients)
	}
}

// exchange is the place where the update of the oldest batch in progress reads, and the place of the new weights after
// it.
func (b *buffers) exchange(inProgress []*batch) (before, after Place) {
	oldest := inProgress[0]
	if b.delay == 0 {
		return Place{oldest.weights, oldest.gradients, -1, -1}, Place{oldest.weights, -1, -1, -1}
	}
	return Place{b.current(oldest, inProgress), oldest.gradients, -1, -1}, Place{oldest.gradients, -1, -1, -1}
}

// roles are the roles of the buffers while no batch is in progress.
func (b *buffers) roles() Roles {
	return Roles{Older: b.versions[0], Newest: b.versions[b.delay], Gradients: b.free[0]}
}

// check returns an error unless every buffer has one role.
func (b *buffers) check(inProgress []*batch) error {
	versions, gradients := slices.Clone(b.versions), 0
	all := slices.Clone(b.free)
	for _, x := range inProgress {
		if !x.evaluates && (b.delay == 0 || x.stale > 0) {
			versions = append(versions, x.weights)
		}
		if x.gradients >= 0 {
			all = append(all, x.gradients)
			gradients++
		}
	}
	all = append(all, versions...)
	slices.Sort(all)
	if !slices.Equal(all, b.all) || len(versions) > 1+b.delay || gradients > 1+b.delay {
		return fmt.Errorf("buffers clash: weights %v, %d of gradients, free %v", versions, gradients, b.free)
	}
	return nil
}
