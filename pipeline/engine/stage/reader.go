package stage

import (
	"iter"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// reader reads a rank's action list ahead of the next action, because the exchange of a batch is done early.
type reader struct {
	pull  func() (schedule.Action, bool)
	stop  func()
	from  int               // the number of batch 0 of the list
	ahead []schedule.Action // read and not yet passed; exchange actions stay as deadlines after they are done
	limit int               // the first batch that must not begin
}

func newReader(actions iter.Seq[schedule.Action], from int) *reader {
	r := &reader{from: from, limit: math.MaxInt}
	r.pull, r.stop = iter.Pull(actions)
	return r
}

// next is the next action. It passes no-ops before it, and actions beyond the limit.
func (r *reader) next(isNoOp func(schedule.Action) bool) (schedule.Action, bool) {
	for len(r.ahead) > 0 || r.read() {
		if a := r.ahead[0]; a.Batch < r.limit && !isNoOp(a) {
			return a, true
		}
		r.pass()
	}
	return schedule.Action{}, false
}

// pass passes the first action that is read.
func (r *reader) pass() { r.ahead = r.ahead[1:] }

// read reads one more action. A batch is complete before the batch after the next begins, so it stops where the second
// batch beyond the limit begins.
func (r *reader) read() bool {
	a, ok := r.pull()
	a.Batch += r.from
	if !ok || onMicrobatch(a) && r.limit < math.MaxInt && a.Batch > r.limit {
		r.stop()
		return false
	}
	r.ahead = append(r.ahead, a)
	return true
}

// exchange lists the exchange actions of a batch, in order. It reads up to their deadline, the first action that reads
// the new weights.
func (r *reader) exchange(batch int, isDeadline func(schedule.Action) bool) (actions []schedule.Action) {
	for found := slices.ContainsFunc(r.ahead, isDeadline); !found && r.read(); {
		found = isDeadline(r.ahead[len(r.ahead)-1])
	}
	for _, a := range r.ahead {
		if a.Kind.PerBatch() && a.Batch == batch {
			actions = append(actions, a)
		}
	}
	return actions
}
