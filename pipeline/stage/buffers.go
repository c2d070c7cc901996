package stage

import (
	"fmt"
	"slices"
)

// buffers assigns the buffers of a rank's parameters to batches, as the package comment describes. A batch has a buffer
// of weights from its first action, and one of gradients as soon as one is free.
type buffers struct {
	delay    int
	all      []int // sorted
	versions []int // of the weights of batches to come, in order
	free     []int // for the gradients of batches to come, in order
}

func newBuffers(r Roles, delay int) *buffers {
	all := []int{r.Current, r.Next, r.Gradients}
	slices.Sort(all)
	return &buffers{delay: delay, all: slices.Compact(all), versions: []int{r.Current, r.Next}[:1+delay], free: []int{r.Gradients}}
}

// begin gives a batch its weights. An evaluation leaves them to the next batch.
func (b *buffers) begin(x *batch) {
	x.weights = b.versions[0]
	if !x.evaluates {
		b.versions = b.versions[1:]
	}
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

// endBackward takes notice of the last backward of a batch. With a delay, nothing reads the batch's weights then.
func (b *buffers) endBackward(x *batch) {
	if b.delay == 1 {
		b.free = append(b.free, x.weights)
	}
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
		return Place{oldest.weights, oldest.gradients, -1}, Place{oldest.weights, -1, -1}
	}
	newest := b.versions
	if len(inProgress) > 1 {
		newest = []int{inProgress[1].weights}
	}
	return Place{newest[0], oldest.gradients, -1}, Place{oldest.gradients, -1, -1}
}

// roles are the roles of the buffers while no batch is in progress.
func (b *buffers) roles() Roles {
	return Roles{Current: b.versions[0], Next: b.versions[b.delay], Gradients: b.free[0]}
}

// check returns an error unless every buffer has one role.
func (b *buffers) check(inProgress []*batch) error {
	versions, gradients := slices.Clone(b.versions), 0
	all := slices.Clone(b.free)
	for _, x := range inProgress {
		if !x.evaluates && (b.delay == 0 || x.left > 0) {
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
