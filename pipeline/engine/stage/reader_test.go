package stage

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// actionsOf are a forward, a backward and an exchange of each batch.
func actionsOf(batches int) (actions []schedule.Action) {
	for b := range batches {
		for _, kind := range []schedule.Kind{schedule.Forward, schedule.Backward, schedule.GradNorm, schedule.Update} {
			actions = append(actions, schedule.Action{Kind: kind, Batch: b})
		}
	}
	return actions
}

func kept(schedule.Action) bool { return false }

func TestReaderCountsFromItsFirstBatch(t *testing.T) {
	r := newReader(slices.Values(actionsOf(2)), 5)
	defer r.stop()
	var read []schedule.Action
	for a, ok := r.next(kept); ok; a, ok = r.next(kept) {
		read = append(read, a)
		r.pass()
	}
	assert.Len(t, read, 8)
	assert.Equal(t, []int{5, 6}, []int{read[0].Batch, read[7].Batch})
	_, ok := r.next(kept)
	assert.False(t, ok, "after its end too")
}

func TestReaderPassesNoOps(t *testing.T) {
	r := newReader(slices.Values(actionsOf(1)), 0)
	defer r.stop()
	a, ok := r.next(func(a schedule.Action) bool { return a.Kind != schedule.Update })
	assert.True(t, ok)
	assert.Equal(t, schedule.Update, a.Kind)
	again, _ := r.next(kept)
	assert.Equal(t, a, again, "what was passed does not come back")
}

// The exchange of a batch is known before the reader comes to it. Its actions stay.
func TestReaderFindsTheExchange(t *testing.T) {
	for delay := range 2 {
		r := newReader(slices.Values(actionsOf(4)), 0)
		defer r.stop()
		exchange := r.exchange(0, func(a schedule.Action) bool { return onMicrobatch(a) && a.Batch > delay })
		assert.Equal(t, actionsOf(1)[2:], exchange, "delay %d", delay)
		assert.Equal(t, 1+delay, r.ahead[len(r.ahead)-1].Batch, "it reads no further than to the deadline")
		a, _ := r.next(kept)
		assert.Equal(t, schedule.Forward, a.Kind)
	}
}

func TestReaderStopsAtItsLimit(t *testing.T) {
	newest := 0
	r := newReader(func(yield func(schedule.Action) bool) {
		for _, a := range actionsOf(9) {
			if newest = a.Batch; !yield(a) {
				return
			}
		}
	}, 0)
	defer r.stop()
	r.limit = 2
	last := schedule.Action{}
	for a, ok := r.next(kept); ok; a, ok = r.next(kept) {
		last = a
		r.pass()
	}
	assert.Equal(t, schedule.Action{Kind: schedule.Update, Batch: 1}, last)
	assert.Equal(t, 3, newest, "it reads the batch at the limit and one action of the next")
}
