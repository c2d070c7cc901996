package engine

import (
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

// complete waits for each operation in order, until the queue is closed. After a failure, of this
// rank or another, it drops the rest. fault turns the error of an action into an error of the rank.
func (q operationQueue) complete(f *failure, fault func(schedule.Action, error) error) {
	for op := range q {
		var results [][]byte
		for _, p := range op.pending {
			if f.get() != nil {
				break
			}
			b, err := p.Wait()
			if err != nil {
				f.set(fault(op.action, err))
			}
			results = append(results, b)
		}
		if f.get() == nil {
			op.done(results)
		}
	}
}
