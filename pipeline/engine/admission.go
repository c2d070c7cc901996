package engine

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/wire"
)

// admit checks a message from another process before anything of it is kept: its rank sends such messages to this one,
// its tensors have the right sizes, and it is not earlier than it can be. So a peer can make this process keep no more
// than the messages of a few batches of training, or of the batches of an evaluation.
func (w *worker) admit(m stage.Message, payload [][]byte) error {
	if !w.machine.Expects(m) {
		return fmt.Errorf("unexpected message: %v to %s", m, w.rank.name())
	}
	if first := int(w.firstUnfinished.Load()); !w.segment.task.evaluates && m.Batch > first+w.rank.engine.mostAhead() {
		return fmt.Errorf("message %v: %s has finished the batches before %d, expected a batch up to %d", m, w.rank.name(), first,
			first+w.rank.engine.mostAhead())
	}
	sizes := w.expectedSizes(m)
	if len(payload) != len(sizes) {
		return fmt.Errorf("message %v: the payload has %d tensors, expected %d", m, len(payload), len(sizes))
	}
	for i, tensor := range payload {
		if int64(len(tensor)) != sizes[i] {
			return fmt.Errorf("message %v: tensor %d has %d bytes, expected %d", m, i, len(tensor), sizes[i])
		}
	}
	return nil
}

// mostAhead is by how many batches a message can be ahead of the first batch that its receiver has not finished. With
// delay d, a rank has at most 1+d batches in progress. A sender of a message of batch b has begun b, so it has finished
// b−1−d. For that it needs the gradient norms, or the contributions, that the receiver computes in batch b−1−d. So the
// receiver has begun b−1−d, and has finished the batches before b−1−2·d.
func (e *Engine) mostAhead() int { return 1 + 2*e.options.Layout.Delay }

// expectedSizes are the bytes of each tensor of a message to the worker's rank, as another process sends them.
func (w *worker) expectedSizes(m stage.Message) (sizes []int64) {
	r := w.rank
	if m.Kind == stage.NormSquares {
		return []int64{r.engine.ranks[m.From].optimizer.LocalType().Bytes()}
	}
	for _, t := range r.stored(stage.Effect{Message: m}) {
		sizes = append(sizes, r.sizes[t.name])
	}
	for i, f := range r.engine.encoding(m, r.index, w.segment.task.evaluates).formats {
		if f != wire.F32 {
			sizes[i] = f.Size(sizes[i] / 4)
		}
	}
	return sizes
}
