package inference

import (
	"cmp"
	"context"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/inference/tasks"
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
	losses, err := evaluator{s, o.BatchSize}.rowLosses(ctx, rows, src.Model.Size().SeqLen, o.Progress)
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

// rowLosses returns the negative log-likelihood of the scored tokens of each row, of seqLen tokens at most.
func (e evaluator) rowLosses(ctx context.Context, rows []tasks.Row, seqLen int, progress func(done, total int64)) ([]float64, error) {
	losses := make([]float64, 0, len(rows))
	err := overlap(ctx, int64((len(rows)+e.rows-1)/e.rows), func(i int64) (collect func() error, err error) {
		batch := rows[int(i)*e.rows:]
		batch = batch[:min(e.rows, len(batch))]
		inputs, targets := tasks.Batch(batch, e.rows, seqLen, model.NoTarget)
		p, err := e.start(inputs, targets, nil)
		if err != nil {
			return nil, err
		}
		return func() error {
			b, err := p.Wait()
			if err != nil {
				return err
			}
			for _, l := range exec.ToF32(b)[:len(batch)] {
				losses = append(losses, float64(l)*float64(seqLen))
			}
			if progress != nil {
				progress(int64(len(losses)), int64(len(rows)))
			}
			return nil
		}, nil
	})
	return losses, err
}
