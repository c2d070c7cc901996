package optim

import (
	"iter"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// maxBatchBytes bounds the tensor into which matrices of one shape are gathered.
const maxBatchBytes = 64 << 20

// batch names the matrices that are computed as one tensor [n, rows, cols]: several of one shape, or one stack.
type batch struct {
	members []int // indices of the matrices, or the index of the stack
	stacked bool  // the member is a stack, [n, rows, cols] already
}

// gather returns the tensor of a batch. xs has an entry for each matrix and each stack. An entry may be something else
// than the matrix: its rows, for example. The entry of a stack then has the stack's first axis.
func (b batch) gather(xs []*graph.Value) *graph.Value {
	if b.stacked {
		return xs[b.members[0]]
	}
	var rows []*graph.Value
	for _, i := range b.members {
		rows = append(rows, op.Reshape(xs[i], append([]int{1}, xs[i].Shape...)...))
	}
	return op.Concat(0, rows...)
}

// entries is the inverse of gather: the entries of y with their indices.
func (b batch) entries(y *graph.Value) iter.Seq2[int, *graph.Value] {
	return func(yield func(int, *graph.Value) bool) {
		if b.stacked {
			yield(b.members[0], y)
			return
		}
		for j, i := range b.members {
			if !yield(i, op.Reshape(op.Slice(y, 0, j, j+1), y.Shape[1:]...)) {
				return
			}
		}
	}
}

// batched applies f to the batches of matrices [rows, cols] and stacks [n, rows, cols], and returns the results in the
// order of xs. Gathered batches have at most limit bytes.
func batched(xs []*graph.Value, limit int64, f func(x *graph.Value, b batch) *graph.Value) []*graph.Value {
	ys := make([]*graph.Value, len(xs))
	for _, b := range batches(xs, limit) {
		for i, y := range b.entries(f(b.gather(xs), b)) {
			ys[i] = y
		}
	}
	return ys
}

// batches groups the indices of matrices by shape, in order. A stack is a batch of its own.
func batches(xs []*graph.Value, limit int64) []batch {
	var batches []batch
	open := map[string]int{} // batch by shape
	for i, x := range xs {
		if len(x.Shape) > 2 {
			batches = append(batches, batch{[]int{i}, true})
			continue
		}
		key := x.Shape.String()
		at, ok := open[key]
		if !ok || int64(len(batches[at].members)+1)*x.Type.Bytes() > limit {
			at = len(batches)
			batches, open[key] = append(batches, batch{}), at
		}
		batches[at].members = append(batches[at].members, i)
	}
	return batches
}
