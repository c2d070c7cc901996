package engine

import (
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/stage"
)

// traceRun records a run that has finished just now: it began when it was enqueued, or when the run before it ended. What lies
// between is a wait.
func (w *worker) traceRun(a schedule.Action, enqueued time.Time) {
	now := time.Now()
	if w.e.Trace != nil {
		began := enqueued
		if w.done.After(began) {
			began = w.done
		} else if !w.done.IsZero() {
			w.e.Trace.Complete(w.name(), "wait", w.done, began.Sub(w.done), nil)
		}
		args := map[string]any{"batch": a.Batch}
		if !a.Kind.PerBatch() {
			args["microbatch"] = a.Microbatch
		}
		w.e.Trace.Complete(w.name(), a.String(), began, now.Sub(began), args)
	}
	w.done = now
}

// traceSend records a transfer that has left the device just now.
func (w *worker) traceSend(m stage.Message, began time.Time) {
	if w.e.Trace != nil {
		w.e.Trace.Complete(w.name()+" transfer", fmt.Sprint(m), began, time.Since(began), nil)
	}
}
