package train

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noteTaker records messages.
type noteTaker struct {
	Silent
	text []string
}

func (n *noteTaker) Note(format string, args ...any) {
	n.text = append(n.text, fmt.Sprintf(format, args...))
}

// shortText deals batches of a short text.
func shortText(t *testing.T) *data.Batcher {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(path, []byte("the cat sat on a mat"), 0o666))
	tok, err := tokenizer.Open("bytes")
	require.NoError(t, err)
	text, _, err := data.Load(context.Background(), data.Options{Train: []string{path}, Tokenizer: tok, Vocab: tok.VocabSize(), SeqLen: 4,
		Field: "text"})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, text.Close()) })
	b, err := data.NewBatcher(text, data.BatchConfig{SeqLen: 4, BatchSize: 1})
	require.NoError(t, err)
	return b
}

// divergedEvaluation is a pipeline whose evaluations measure a loss that is not finite.
type divergedEvaluation struct{ Pipeline }

func (divergedEvaluation) Evaluate(_ context.Context, _ engine.Source, _ int, each func(engine.Measured) error) error {
	return each(engine.Measured{Losses: []float32{float32(math.NaN())}})
}

// A run whose loss is not finite before an update has changed the weights that are read does not blame the learning
// rate.
func TestAdviceOnDivergence(t *testing.T) {
	o, err := optim.New(optim.Config{Algorithm: &optim.SGD{LR: 1}, Schedule: optim.Schedule{Name: "constant"}},
		[]optim.Param{{Name: "w", Type: graph.T(graph.F32, 2, 2), Layer: "l", Gradient: "g"}})
	require.NoError(t, err)
	const rate, weights, f16 = "a smaller learning rate", "it is not the learning rate", "train.precision: bf16 goes as far as f32"
	const all, applied, skipped = config.StaleAll, false, true
	for _, x := range []struct {
		precision graph.DType
		delay     int
		stale     config.StaleMicrobatches
		start     int
		batches   []bool // before the one that diverges
		want, not string
	}{
		{graph.F16, 0, 0, 0, nil, f16, rate}, {graph.F32, 0, 0, 0, nil, weights, "f16"}, {graph.F16, 0, 0, 3, nil, rate, weights},
		{graph.F16, 0, 0, 0, []bool{applied}, rate, weights}, {graph.F16, 0, 0, 0, []bool{skipped}, f16, rate},
		{graph.F32, 1, all, 0, []bool{applied}, weights, rate}, {graph.F32, 1, all, 0, []bool{applied, applied}, rate, weights},
		{graph.F16, 1, all, 0, []bool{applied, skipped}, rate, weights}, {graph.F16, 1, all, 0, []bool{skipped, applied}, f16, rate},
		{graph.F32, 1, 1, 0, nil, weights, rate}, {graph.F32, 1, 1, 0, []bool{applied}, rate, weights},
	} {
		c := config.Config{Train: config.Train{Precision: x.precision.String(), BatchSize: 2, Microbatches: 2}}
		c.Model.SeqLen = 4
		c.Pipeline = config.Pipeline{Delay: x.delay, StaleMicrobatches: x.stale, Replicas: 1}
		r := newTrainer(c, Options{Report: &noteTaker{}})
		text := shortText(t)
		r.job.optimizer, r.job.corpus, r.start.step = o, &corpus{train: text, val: text, predicted: &predicted{tokens: 4}}, x.start
		r.deployment.engine, r.step = divergedEvaluation{}, x.start
		r.recorder.pace.start()
		for _, skip := range x.batches {
			_, err := r.progress(engine.Measured{Batch: r.step, Loss: 1, GradNorm: 1, OK: !skip, Overflowed: skip})
			require.NoError(t, err)
			r.step++
		}
		_, trained := r.progress(engine.Measured{Batch: r.step, Loss: math.NaN(), GradNorm: math.NaN(), Scale: 65536})
		for _, err := range []error{trained, r.evaluate(t.Context())} {
			require.ErrorIs(t, err, ErrDiverged)
			assert.ErrorContains(t, err, x.want, "%+v", x)
			assert.NotContains(t, err.Error(), x.not, "%+v", x)
		}
	}
}

// A step that is done again after a restart is not reported again.
func TestOverflowIsReportedOnce(t *testing.T) {
	o, err := optim.New(optim.Config{Algorithm: &optim.SGD{LR: 1}, Schedule: optim.Schedule{Name: "constant"}},
		[]optim.Param{{Name: "w", Type: graph.T(graph.F32, 2, 2), Layer: "l", Gradient: "g"}})
	require.NoError(t, err)
	n := &noteTaker{}
	r := newTrainer(config.Config{}, Options{Report: n})
	r.job.optimizer, r.recorder.reported, r.job.corpus = o, 4, &corpus{train: shortText(t)}
	r.recorder.pace.start()
	for batch := 3; batch < 5; batch++ {
		p, err := r.progress(engine.Measured{Batch: batch, Loss: 1, GradNorm: math.Inf(1), Overflowed: true, Scale: 1024})
		require.NoError(t, err)
		assert.True(t, p.Skipped)
	}
	if assert.Len(t, n.text, 1) {
		assert.Contains(t, n.text[0], "step 5: ")
	}
}
