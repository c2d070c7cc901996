package engine

import (
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// Tracks are the rows of a rank in a trace: its runs and waits, its sends, its receives.
func (p RankPlan) Tracks() []string {
	return []string{p.Name, trace.SendTrack(p.Name), trace.ReceiveTrack(p.Name)}
}

// category is the trace category of a run.
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

// timeline records the events of one rank in the trace. One goroutine calls run, wait and send, another receive.
type timeline struct {
	tracer Tracer    // nil: none
	name   string    // of the rank
	idle   time.Time // when the device finished its last run, or the timeline began
	sent   time.Time // when the last transfer had reached the host
}

// newTimeline is the timeline of a rank that is idle from now on.
func newTimeline(t Tracer, rank string) timeline {
	return timeline{tracer: t, name: rank, idle: time.Now()}
}

// run records a run that has just finished. It began when it was enqueued or when the run before it ended, whichever is
// later.
func (t *timeline) run(a schedule.Action, enqueued time.Time) {
	now := time.Now()
	if t.tracer != nil {
		began := later(enqueued, t.idle)
		t.wait(began)
		args := map[string]any{"batch": a.Batch}
		if !a.Kind.PerBatch() {
			args["microbatch"] = a.Microbatch
		}
		t.tracer.Complete(t.name, category(a.Kind), a.String(), began, now.Sub(began), args)
	}
	t.idle = now
}

// wait records that the rank has been idle since its last run, or since the start of the timeline.
func (t *timeline) wait(until time.Time) {
	if t.tracer != nil && until.After(t.idle) {
		t.tracer.Complete(t.name, trace.Wait, "wait", t.idle, until.Sub(t.idle), nil)
	}
}

// send records a transfer that has just left the device, and returns when it began: when it was enqueued, or when the
// run that computes its data or the transfer before it ended, whichever is latest. payload is empty if the transfer
// passes through a staging buffer.
func (t *timeline) send(m stage.Message, payload [][]byte, enqueued time.Time) (began time.Time) {
	now := time.Now()
	began = later(later(enqueued, t.idle), t.sent)
	if t.tracer != nil {
		args, bytes := map[string]any{"batch": m.Batch}, 0
		for _, p := range payload {
			bytes += len(p)
		}
		if bytes > 0 {
			args["bytes"] = bytes
		}
		t.tracer.Complete(trace.SendTrack(t.name), trace.Send, m.String(), began, now.Sub(began), args)
	}
	t.sent = now
	return began
}

// receive records that the payload of a message from another rank was handed to the device, with an arrow from its
// send.
func (t *timeline) receive(m stage.Message, from string, sent, began time.Time) {
	if t.tracer == nil || from == t.name {
		return
	}
	to := trace.ReceiveTrack(t.name)
	t.tracer.Complete(to, trace.Receive, m.String(), began, time.Since(began), map[string]any{"batch": m.Batch})
	t.tracer.Flow(m.String(), trace.SendTrack(from), sent, to, began)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
