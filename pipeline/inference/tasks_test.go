package inference

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scored is the log-likelihood of the bytes of a text from one on, token by token with a cache.
func scored(t *testing.T, b *Batch, slot int, text string, from int) (sum float64) {
	t.Helper()
	ids, err := b.Source().Tokenizer.Encode([]byte(text))
	require.NoError(t, err)
	require.NoError(t, b.Score(slot, 0, ids[:len(ids)-1], func(i int, logits []float32) error {
		if i+1 >= from {
			sum += float64(logits[ids[i+1]]) - LogSumExp(logits)
		}
		return nil
	}))
	return sum
}

// The losses of a task's options are those of decoding, so its accuracies are, too.
func TestAnswerTasks(t *testing.T) {
	dir := trained(t, "model={vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 24}")
	src, err := OpenModel(dir, "")
	require.NoError(t, err)
	b, err := NewBatch(src, onReference, 2, 0)
	require.NoError(t, err)
	defer b.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"the", "cat", "sat", "on", "a", "mat and a hat", "zebra"}
	var text []byte
	var acc, norm float64
	const n = 24
	for i := range n {
		context, choices, answer := words[rng.IntN(5)]+" "+words[rng.IntN(5)], []string{words[rng.IntN(7)], words[rng.IntN(7)], "of it"},
			rng.IntN(3)
		line, err := json.Marshal(map[string]any{"context": context, "choices": choices, "answer": answer})
		require.NoError(t, err)
		text = append(append(text, line...), '\n')
		best, bestNorm, most, mostNorm := 0, 0, -1e9, -1e9
		for j, c := range choices {
			l := scored(t, b, i%2, context+" "+c, len(context))
			if l > most {
				best, most = j, l
			}
			if l/float64(len(c)) > mostNorm {
				bestNorm, mostNorm = j, l/float64(len(c))
			}
		}
		if best == answer {
			acc += 1. / n
		}
		if bestNorm == answer {
			norm += 1. / n
		}
	}
	path := filepath.Join(t.TempDir(), "words.jsonl")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	for _, batch := range []int{1, 5} {
		o := TaskOptions{EvalOptions: EvalOptions{From: dir, BatchSize: batch, Target: onReference}, Files: []string{path}}
		e, err := AnswerTasks(context.Background(), o)
		require.NoError(t, err)
		require.Len(t, e.Tasks, 1)
		assert.InDelta(t, acc, e.Tasks[0].Accuracy, 1e-9)
		assert.InDelta(t, norm, e.Tasks[0].AccuracyNorm, 1e-9)
		assert.Equal(t, fmt.Sprint("words ", n), fmt.Sprint(e.Tasks[0].Task, " ", e.Tasks[0].Questions))
		assert.Equal(t, e.Tasks[0].Centered, e.Core)
	}
	_, err = AnswerTasks(context.Background(), TaskOptions{EvalOptions: EvalOptions{From: dir, BatchSize: 1, Target: onReference},
		Files: []string{"none"}})
	assert.ErrorContains(t, err, "none: no such file")
}

// The results of tasks in metrics.jsonl are those of the checkpoints, on any number of stages. Bits per byte are there,
// too.
func TestTasksDuringTraining(t *testing.T) {
	path := filepath.Join(t.TempDir(), "words.jsonl")
	var text []byte
	for i := range 9 {
		line, err := json.Marshal(map[string]any{"context": "the", "choices": []string{"cat", "mat", "on a"}, "answer": i % 3})
		require.NoError(t, err)
		text = append(append(text, line...), '\n')
	}
	require.NoError(t, os.WriteFile(path, text, 0o666))
	for _, stages := range []string{"1", "2"} {
		dir := trained(t, "train={steps: 4, batch_size: 4, microbatches: 2, eval_every: 2, save_every: 2, eval_tasks: ["+path+"], eval_questions: 8}", "pipeline.stages="+stages)
		for _, r := range traintest.Measurements(t, dir) {
			acc, has := r.Values["tasks/words/acc"]
			require.Equal(t, r.Step%2 == 0, has, "step %d", r.Step)
			if !has {
				continue
			}
			e, err := AnswerTasks(context.Background(),
				TaskOptions{EvalOptions: EvalOptions{From: traintest.StepDir(dir, r.Step), BatchSize: 4, Target: onReference},
					Files: []string{path}, Limit: 8})
			require.NoError(t, err)
			assert.InDelta(t, e.Tasks[0].Accuracy, acc, 1e-9)
			assert.InDelta(t, e.Tasks[0].AccuracyNorm, r.Values["tasks/words/acc_norm"], 1e-9)
			assert.InDelta(t, r.Values["val_loss"]/math.Ln2, r.Values["val_bits_per_byte"], 1e-9, "a token is a byte")
		}
	}
	c := traintest.Demo(t, t.TempDir(), "train.eval_tasks=[none.jsonl]")
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	assert.ErrorContains(t, err, "train.eval_tasks: open none.jsonl")
}
