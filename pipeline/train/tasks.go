package train

import (
	"context"
	"fmt"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/inference/tasks"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// values are the measurements by their names in metrics.jsonl.
func (e Evaluation) values() (values []metrics.Value) {
	if e.ValLoss != nil {
		values = append(values, metrics.Value{Name: "val_loss", Value: *e.ValLoss})
	}
	if e.BitsPerByte != nil {
		values = append(values, metrics.Value{Name: "val_bits_per_byte", Value: *e.BitsPerByte})
	}
	for _, r := range e.Tasks {
		values = append(values, metrics.Value{Name: "tasks/" + r.Task + "/acc", Value: r.Accuracy},
			metrics.Value{Name: "tasks/" + r.Task + "/acc_norm", Value: r.AccuracyNorm})
	}
	if len(e.Tasks) > 1 {
		values = append(values, metrics.Value{Name: "tasks/core", Value: tasks.Core(e.Tasks)})
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
			return usererror.Errorf("train.eval_tasks: %w", err)
		}
		t = t.First(j.config.Train.EvalQuestions)
		rows, err := t.Encode(j.corpus.texts.tok, j.model.Size().SeqLen+1)
		if err != nil {
			return usererror.Errorf("train.eval_tasks: %w", err)
		}
		names[t.Name] = true
		j.tasks.tasks, j.tasks.rows = append(j.tasks.tasks, t), append(j.tasks.rows, rows...)
	}
	return nil
}

// evaluates reports whether there is something to evaluate, in a run that leaves something behind.
func (j *job) evaluates() bool {
	return !j.options.Unsaved && (j.corpus.val != nil || len(j.tasks.tasks) > 0)
}

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
	source := engine.Source(engine.Tokens(batch))
	if t.job.task.Inputs.EvalSegments {
		source = oneDocument{source}
	}
	err = t.deployment.engine.Evaluate(ctx, source, (len(asked.rows)+n-1)/n, func(m engine.Measured) error {
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
