package engine

import (
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
)

// Work is what the ranks of all processes of a pipeline do together: training, or an evaluation, on the batches From
// (included) to To (excluded). The pipeline is empty before and after it.
type Work struct {
	Evaluates bool
	From, To  int
	Source    Source       // of the ranks of this process; it has a batch when the batch is granted
	Report    func(Result) // takes the results of the ranks of this process
	// Hyperparameters returns the hyperparameters of a batch's update. initialized reports whether an update was
	// applied before.
	Hyperparameters func(batch int, initialized bool) []float32
}

// Part is the part of the work that the ranks of this process do. Another process coordinates it: it grants batches,
// and ends the work.
type Part struct {
	seg   *segment
	work  Work
	ended chan struct{}
	end   int
	err   error
}

// Begin begins this process's part of some work, while no other is in progress. No batch begins before it is granted.
func (e *Engine) Begin(w Work) (*Part, error) {
	task := e.training(w.Source)
	if w.Evaluates {
		task = e.evaluation(w.Source)
	}
	task.hyperparameters = w.Hyperparameters
	seg, err := e.segment(task, w.From, w.To, w.Report)
	if err != nil {
		return nil, err
	}
	seg.gate.granted = w.From
	p := &Part{seg: seg, work: w, ended: make(chan struct{})}
	e.parts.Go(func() {
		p.end, p.err = e.finish(seg, w.From)
		close(p.ended)
	})
	return p, nil
}

// Grant permits the batches before a limit to begin.
func (p *Part) Grant(limit int) {
	p.seg.gate.grant(limit)
	p.wake()
}

// End ends the work with the batch before a limit, which may be less than Work.To. The batches before it are granted.
func (p *Part) End(limit int) {
	p.seg.gate.endAt(limit)
	p.wake()
}

// wake makes the workers that wait for a batch try again.
func (p *Part) wake() {
	for _, w := range p.seg.local() {
		p.seg.post(w.rank.index, event{granted: true})
	}
}

// Deliver hands a message from another process to a rank of this one. Its payload has the bytes of each tensor. sent is
// when its sender began to read it, by the clock of the sender: the trace shows an arrow from there. An error means
// that the sender is at fault.
func (p *Part) Deliver(to int, m stage.Message, payload [][]byte, sent time.Time) error {
	if to < 0 || to >= len(p.seg.workers) || p.seg.workers[to] == nil {
		return fmt.Errorf("message %v for rank %d, which is not in this process", m, to)
	}
	if m.Batch < p.work.From || m.Batch >= p.work.To {
		return fmt.Errorf("message %v: expected a batch from %d to %d", m, p.work.From, p.work.To-1)
	}
	if err := p.seg.workers[to].admit(m, payload); err != nil {
		return err
	}
	p.seg.post(to, event{transfer: &transfer{message: m, state: inFlight, payload: payload, began: sent}})
	return nil
}

// Wait waits for the end of this process's part. It returns the first batch that was not done.
func (p *Part) Wait() (int, error) {
	<-p.ended
	return p.end, p.err
}
