package inference

import (
	"cmp"
	"context"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/tasks"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// TaskOptions select the tasks of AnswerTasks. The fields of EvalOptions that it reads are From, Tokenizer, Weights,
// SeqLen, BatchSize, Target, Progress (in rows) and Note.
type TaskOptions struct {
	EvalOptions
	Files []string
	Shots int // examples before each question
	Limit int // questions of each task; 0: all
}

// TaskEvaluation is how well a model answers tasks.
type TaskEvaluation struct {
	Model   string         `json:"model"`
	Weights Version        `json:"weights"`
	Shots   int            `json:"shots"`
	Tasks   []tasks.Result `json:"tasks"`
	Core    float64        `json:"core"` // mean of the centered accuracies
}

// AnswerTasks scores a model on multiple-choice tasks.
func AnswerTasks(ctx context.Context, o TaskOptions) (out TaskEvaluation, err error) {
	src, err := OpenWeights(o.From, nil, o.Tokenizer, o.Weights, o.Note)
	if err != nil {
		return out, err
	}
	defer src.Close()
	if err := src.setSeqLen(o.SeqLen); err != nil {
		return out, usererror.New(err)
	}
	all, rows, err := src.questions(o)
	if err != nil {
		return out, usererror.New(err)
	}
	s, err := src.loadEval(o.Target, o.BatchSize, false)
	if err != nil {
		return out, err
	}
	defer s.Close()
	losses, err := rowLosses{evaluator{session: s, rows: o.BatchSize}, src.Model.Size().SeqLen}.of(ctx, rows, o.Progress)
	if err != nil {
		return out, err
	}
	out = TaskEvaluation{Model: src.Dir, Weights: cmp.Or(o.Weights, VersionX), Shots: o.Shots}
	for _, t := range all {
		n := t.Rows()
		r, err := t.Score(losses[:n])
		if err != nil {
			return out, usererror.New(err)
		}
		out.Tasks, losses = append(out.Tasks, r), losses[n:]
	}
	out.Core = tasks.Core(out.Tasks)
	return out, nil
}

// questions reads the tasks, and shortens the model's sequences to the longest row.
func (src *Source) questions(o TaskOptions) (all []*tasks.Task, rows []tasks.Row, err error) {
	for _, file := range o.Files {
		t, err := tasks.Read(file)
		if err != nil {
			return nil, nil, err
		}
		if t, err = t.Shots(o.Shots); err != nil {
			return nil, nil, err
		}
		t = t.First(o.Limit)
		mine, err := t.Encode(src.Tokenizer, src.Model.Size().SeqLen+1)
		if err != nil {
			return nil, nil, err
		}
		all, rows = append(all, t), append(rows, mine...)
	}
	if _, cached := src.Cached(); cached { // models that hooks build have one length
		err = src.setSeqLen(tasks.Longest(rows))
	}
	return all, rows, err
}

// rowLosses computes the losses of rows in batches.
type rowLosses struct {
	evaluator
	seqLen int
}

// of returns the negative log-likelihood of each row's scored tokens. It collects a batch's results after it has started
// the next one.
func (r rowLosses) of(ctx context.Context, rows []tasks.Row, progress func(done, total int64)) ([]float64, error) {
	losses := make([]float64, 0, len(rows))
	var last device.Pending
	collect := func() error {
		if last == nil {
			return nil
		}
		b, err := last.Wait()
		if err != nil {
			return err
		}
		for _, l := range exec.ToF32(b)[:min(r.rows, len(rows)-len(losses))] {
			losses = append(losses, float64(l)*float64(r.seqLen))
		}
		if progress != nil {
			progress(int64(len(losses)), int64(len(rows)))
		}
		return nil
	}
	for at := 0; at < len(rows); at += r.rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		inputs, targets := tasks.Batch(rows[at:min(at+r.rows, len(rows))], r.rows, r.seqLen, model.NoTarget)
		p, err := r.start(inputs, targets, nil)
		if err != nil {
			return nil, err
		}
		if err := collect(); err != nil {
			return nil, err
		}
		last = p
	}
	return losses, collect()
}
