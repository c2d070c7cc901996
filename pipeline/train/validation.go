package train

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// validationSource is the engine's source of validation windows.
type validationSource struct{ windows *data.Batcher }

// Batch implements engine.Source.
func (s validationSource) Batch(number int64) (engine.Batch, error) {
	inputs, targets, segments, err := s.windows.Evaluated(number)
	if err != nil {
		return nil, usererror.New(err)
	}
	b := engine.Batch{model.TokensInput: exec.IntBytes(inputs), model.TargetsInput: exec.IntBytes(targets)}
	if segments != nil {
		b[model.SegmentsInput] = exec.IntBytes(segments)
	}
	return b, nil
}

// oneDocument adds segments to a source whose sequences are one document each.
type oneDocument struct{ engine.Source }

// Batch implements engine.Source.
func (s oneDocument) Batch(number int64) (engine.Batch, error) {
	b, err := s.Source.Batch(number)
	if err != nil {
		return nil, err
	}
	b = maps.Clone(b)
	b[model.SegmentsInput] = make([]byte, len(b[model.TokensInput]))
	return b, nil
}

// validationLoss is the mean loss of the current weights on validation windows, summed in float64, and their
// predictions.
func (t *trainer) validationLoss(ctx context.Context) (float64, *predicted, error) {
	c, val := t.job.config, t.job.corpus.val
	total, rows := val.Windows(), int64(c.Rows())
	if c.Train.EvalBatches > 0 {
		total = min(total, int64(c.Train.EvalBatches)*int64(c.At(0).Train.BatchSize))
	}
	p, err := t.job.corpus.predictedBy(total, int(rows))
	if err != nil {
		return 0, nil, usererror.New(err)
	}
	var sum float64
	err = t.deployment.engine.Evaluate(ctx, validationSource{val}, int((total+rows-1)/rows), func(m engine.Measured) error {
		// After the last window the batcher starts over: rows beyond it do not count.
		for _, l := range m.Losses[:min(rows, total-int64(m.Batch)*rows)] {
			sum += float64(l)
		}
		return nil
	})
	t.result.Validation = validationOf(c, total, val.Windows(), p)
	return sum / (float64(p.tokens) / float64(c.Model.SeqLen)), p, err
}

// validationOf describes a measurement of some of all windows.
func validationOf(c config.Config, measured, all int64, p *predicted) *Validation {
	batch := int64(c.At(0).Train.BatchSize)
	batches := func(windows int64) int64 { return (windows + batch - 1) / batch }
	v := &Validation{Text: "held-out text of the run", Batches: batches(measured), Of: batches(all), Tokens: p.tokens}
	if len(c.Data.Val) > 0 {
		v.Text = strings.Join(c.Data.Val, ", ")
	}
	return v
}

// predicted is what an evaluation predicts.
type predicted struct {
	tokens int64
	bytes  int64 // of their text; 0: they have none
}

// predictedBy counts, once, what the first windows of the validation split predict.
func (d *corpus) predictedBy(windows int64, rows int) (*predicted, error) {
	if d.predicted != nil {
		return d.predicted, nil
	}
	p, decodes := &predicted{}, true
	for at := int64(0); at < windows; at += int64(rows) {
		_, targets, _, err := d.val.Evaluated(at / int64(rows))
		if err != nil {
			return nil, err
		}
		ids := data.Predicted(targets[:len(targets)/rows*int(min(int64(rows), windows-at))])
		p.tokens += int64(len(ids))
		if decodes {
			text, err := d.texts.tok.Decode(ids)
			decodes = err == nil
			p.bytes += int64(len(text))
		}
	}
	if p.tokens == 0 {
		return nil, errors.New("data.document_mask: the validation text has no document of more than one token, so nothing is predicted")
	}
	if !decodes {
		p.bytes = 0
	}
	d.predicted = p
	return p, nil
}

// bitsPerByte converts a loss in nats per token; nil: the tokens have no text.
func (p *predicted) bitsPerByte(loss float64) *float64 {
	if p.bytes == 0 {
		return nil
	}
	bits := loss * (float64(p.tokens) / float64(p.bytes)) / math.Ln2
	return &bits
}
