package engine

import (
	"time"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/stage"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// Tracks are the rows of a line in a trace: its runs and waits, what it sends, what it receives.
func (p RankPlan) Tracks() []string {
	return []string{p.Name, trace.SendTrack(p.Name), trace.ReceiveTrack(p.Name)}
}

// category of what a run does.
func category(k schedule.Kind) trace.Category {
	switch k {
	case schedule.Forward:
		return trace.Forward
	case schedule.Evaluate:
		return trace.Evaluate
	case schedule.GradNorm:
		return trace.GradientNorm
	case schedule.Update:
		return trace.Update
	}
	return trace.Backward
}

// traceRun records a run that has finished just now: it began when it was enqueued, or when the run before it ended. What lies
// between is a wait.
func (w *worker) traceRun(a schedule.Action, enqueued time.Time) {
	now := time.Now()
	if w.e.Trace != nil {
		began := later(enqueued, w.done)
		w.traceWait(began)
		args := map[string]any{"batch": a.Batch}
		if !a.Kind.PerBatch() {
			args["microbatch"] = a.Microbatch
		}
		w.e.Trace.Complete(w.name(), category(a.Kind), a.String(), began, now.Sub(began), args)
	}
	w.done = now
}

// traceWait records that the line had nothing to run from the end of its last run, or the beginning of the segment, to a moment.
func (w *worker) traceWait(until time.Time) {
	if w.e.Trace != nil && until.After(w.done) {
		w.e.Trace.Complete(w.name(), trace.Wait, "wait", w.done, until.Sub(w.done), nil)
	}
}

// traceSend records a transfer that has just reached the host, and returns when it began: when it was enqueued, or when the run that
// computes its data or the transfer before it ended, whichever is latest.
func (w *worker) traceSend(m stage.Message, enqueued time.Time) (began time.Time) {
	now := time.Now()
	began = later(later(enqueued, w.done), w.sent)
	if w.e.Trace != nil {
		w.e.Trace.Complete(trace.SendTrack(w.name()), trace.Send, m.String(), began, now.Sub(began), map[string]any{"batch": m.Batch})
	}
	w.sent = now
	return began
}

// traceReceive records that a message's payload was handed to the device, with an arrow from the event of its send.
func (w *worker) traceReceive(m stage.Message, sent, began time.Time) {
	if w.e.Trace == nil || m.From == w.index {
		return
	}
	from, to := trace.SendTrack(w.e.ranks[m.From].name()), trace.ReceiveTrack(w.name())
	w.e.Trace.Complete(to, trace.Receive, m.String(), began, time.Since(began), map[string]any{"batch": m.Batch})
	w.e.Trace.Flow(m.String(), from, sent, to, began)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
