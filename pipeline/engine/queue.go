package engine

import (
	"context"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// operation is work in flight on a device for an action: done is called with what pending returns, when all of it has
// ended.
type operation struct {
	action  schedule.Action
	pending []device.Pending
	done    func(results [][]byte)
}

// operationQueue holds the operations in flight of one rank, in the order of its device's queue.
type operationQueue chan operation

func (q operationQueue) add(a schedule.Action, pending []device.Pending, done func([][]byte)) {
	q <- operation{a, pending, done}
}

// complete waits for each operation in order, until the queue is closed. After ctx has ended, it drops the rest. It
// reports errors to fail, which ends ctx.
func (q operationQueue) complete(ctx context.Context, fail func(schedule.Action, error)) {
	for op := range q {
		var results [][]byte
		for _, p := range op.pending {
			if ctx.Err() != nil {
				break
			}
			b, err := p.Wait()
			if err != nil {
				fail(op.action, err)
			}
			results = append(results, b)
		}
		if ctx.Err() == nil {
			op.done(results)
		}
	}
}
