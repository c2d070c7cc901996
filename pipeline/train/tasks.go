package train

import (
	"context"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/tasks"
)

// evaluation is what is measured of the weights after a step. It has a validation loss if there is a validation split.
type evaluation struct {
	valLoss     *float64 // nats per token
	bitsPerByte *float64 // of the validation split; nil if its tokens have no text, too
	tasks       []tasks.Result
}

// values are the measurements by their names in metrics.jsonl.
func (e evaluation) values() (values []metrics.Value) {
	if e.valLoss != nil {
		values = append(values, metrics.Value{Name: "val_loss", Value: *e.valLoss})
	}
	if e.bitsPerByte != nil {
		values = append(values, metrics.Value{Name: "val_bits_per_byte", Value: *e.bitsPerByte})
	}
	for _, r := range e.tasks {
		values = append(values, metrics.Value{Name: "tasks/" + r.Task + "/acc", Value: r.Accuracy}, metrics.Value{Name: "tasks/" + r.Task + "/acc_norm", Value: r.AccuracyNorm})
	}
	if len(e.tasks) > 1 {
		values = append(values, metrics.Value{Name: "tasks/core", Value: tasks.Core(e.tasks)})
	}
	return values
}

// taskRows are the tasks of train.eval_tasks, and the tokens of their options in order.
type taskRows struct {
	tasks []*tasks.Task
	rows  []tasks.Row
}

// openTasks reads the tasks of a run.
func (j *job) openTasks(context.Context) error {
	names := map[string]bool{}
	for _, file := range j.config.Train.EvalTasks {
		t, err := tasks.Read(file)
		if err == nil && names[t.Name] {
			err = fmt.Errorf("two files have the name %q", t.Name)
		}
		if err != nil {
			return usererror.New(fmt.Errorf("train.eval_tasks: %w", err))
		}
		t = t.First(j.config.Train.EvalQuestions)
		rows, err := t.Encode(j.corpus.tok, j.model.Size().SeqLen+1)
		if err != nil {
			return usererror.New(fmt.Errorf("train.eval_tasks: %w", err))
		}
		names[t.Name] = true
		j.tasks.tasks, j.tasks.rows = append(j.tasks.tasks, t), append(j.tasks.rows, rows...)
	}
	return nil
}

// evaluates reports whether there is something to evaluate.
func (j *job) evaluates() bool { return j.corpus.val != nil || len(j.tasks.tasks) > 0 }

// answer asks the model the questions of the tasks.
func (t *trainer) answer(ctx context.Context) (results []tasks.Result, err error) {
	asked, n, seqLen := t.job.tasks, t.job.config.Rows(), t.job.model.Size().SeqLen
	if len(asked.tasks) == 0 {
		return nil, nil
	}
	batch := func(i int64) (inputs, targets []int32, err error) {
		from := int(i) * n
		inputs, targets = tasks.Batch(asked.rows[from:min(from+n, len(asked.rows))], n, seqLen, model.NoTarget)
		return inputs, targets, nil
	}
	losses := make([]float64, 0, len(asked.rows))
	err = t.session.engine.Evaluate(ctx, engine.Tokens(batch), (len(asked.rows)+n-1)/n, func(m engine.Measured) error {
		for _, l := range m.Losses[:min(n, len(asked.rows)-len(losses))] {
			losses = append(losses, float64(l)*float64(seqLen))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, task := range asked.tasks {
		r, err := task.Score(losses[:task.Rows()])
		if err != nil {
			return nil, usererror.New(err)
		}
		results, losses = append(results, r), losses[task.Rows():]
	}
	return results, nil
}

// bitsPerByte converts a loss in nats per token of the first windows of the validation split; nil: their tokens have no
// text.
func (d *corpus) bitsPerByte(loss float64, windows int64, rows int) (*float64, error) {
	if d.valBytes == nil {
		bytes, tokens := int64(0), int64(0)
		for at := int64(0); at < windows; at += int64(rows) {
			_, targets, err := d.val.Batch(at / int64(rows))
			if err != nil {
				return nil, err
			}
			n := len(targets) / rows * int(min(int64(rows), windows-at))
			ids := make([]uint32, n)
			for i := range ids {
				ids[i] = uint32(targets[i])
			}
			text, err := d.tok.Decode(ids)
			if err != nil {
				bytes = 0
				break
			}
			bytes, tokens = bytes+int64(len(text)), tokens+int64(n)
		}
		per := 0.0
		if bytes > 0 {
			per = float64(tokens) / float64(bytes)
		}
		d.valBytes = &per
	}
	if *d.valBytes == 0 {
		return nil, nil
	}
	bits := loss * *d.valBytes / math.Ln2
	return &bits, nil
}
