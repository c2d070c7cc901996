package inference

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// EvalOptions select the text of an evaluation, and the device.
type EvalOptions struct {
	From      string   // as OpenModel takes it
	Data      []string // files; empty: the validation text of the run
	Tokenizer string   // empty: the model's own
	Weights   Version  // "": x
	SeqLen    int      // 0: the model's context
	BatchSize int      // sequences at a time
	Target    Target
	Progress  func(done, total int64)          // in tokens; nil: not reported
	Note      func(format string, args ...any) // messages for the user; nil: none
}

// Evaluation is how well a model predicts a text.
type Evaluation struct {
	Model          string  `json:"model"`
	Weights        Version `json:"weights"`
	Text           string  `json:"text"`
	Loss           float64 `json:"loss"` // nats per token
	Perplexity     float64 `json:"perplexity"`
	BitsPerByte    float64 `json:"bits_per_byte,omitempty"` // 0 where the tokens have no text
	UnigramEntropy float64 `json:"unigram_entropy"`         // nats per token
	Tokens         int64   `json:"tokens"`
	Bytes          int64   `json:"bytes,omitempty"`
}

// Evaluate computes the loss of a model over a whole text.
func Evaluate(ctx context.Context, o EvalOptions) (out Evaluation, err error) {
	src, err := OpenWeights(o.From, nil, o.Tokenizer, o.Weights, o.Note)
	if err != nil {
		return out, err
	}
	defer src.Close()
	text, name, err := src.validationText(ctx, o.Data)
	if err != nil {
		return out, usererror.New(err)
	}
	defer text.Close()
	reportFindings(text, o.Data, o.Note)
	if err := src.setSeqLen(o.SeqLen); err != nil {
		return out, usererror.New(err)
	}
	windows, err := src.windows(text, o.BatchSize)
	if err != nil {
		return out, usererror.New(err)
	}
	s, err := src.loadEval(o.Target, o.BatchSize, src.masks())
	if err != nil {
		return out, err
	}
	defer s.Close()
	out = Evaluation{Model: src.Dir, Weights: cmp.Or(o.Weights, VersionX), Text: name}
	if out.UnigramEntropy, err = text.UnigramEntropy(); err != nil {
		return out, usererror.New(err)
	}
	return out, out.measure(ctx, evaluator{s, o.BatchSize}, windows, src, o.Progress)
}

// masks reports whether the model was trained to attend within documents only, and so reads texts.
func (src *Source) masks() bool { return src.config != nil && src.config.Data.DocumentMask }

// ends are the tokens that end the documents of a model that masks.
func (src *Source) ends() ([]uint32, error) {
	ids := src.config.Data.Ends(src.Tokenizer.Special())
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s was trained with data.document_mask, but the tokenizer %q has no token that ends documents", src.Dir,
			src.Tokenizer.Name())
	}
	return ids, nil
}

// windows returns the windows of a text, on which the model is evaluated.
func (src *Source) windows(text *data.Corpus, batchSize int) (*data.Batcher, error) {
	c := data.BatchConfig{SeqLen: src.Model.Size().SeqLen, BatchSize: batchSize}
	if src.masks() {
		ends, err := src.ends()
		if err != nil {
			return nil, err
		}
		c.DocumentMask = true
		c.SetEnds(ends)
	}
	return data.NewBatcher(text, c)
}

// loadEval loads the program that computes the losses of a batch, with or without the segments of documents.
func (src *Source) loadEval(t Target, batchSize int, segments bool) (engine.Session, error) {
	g, err := src.Model.Eval(batchSize, segments)
	if err != nil {
		return nil, usererror.New(err)
	}
	return src.load(t, map[string]*graph.Graph{evalProgram: g})
}

// setSeqLen sets the length of the model's sequences; 0 keeps it.
func (src *Source) setSeqLen(seqLen int) error {
	if seqLen == 0 {
		return nil
	}
	m, err := src.Model.WithSeqLen(seqLen)
	if err != nil {
		return fmt.Errorf("%s: %w", src.Dir, fielderror.Rename(err, func(string) string { return "seq-len" }))
	}
	src.Model = m
	return nil
}

// measure computes the loss and what follows from it.
func (out *Evaluation) measure(ctx context.Context, e evaluator, windows *data.Batcher, src *Source,
	progress func(done, total int64)) (err error) {
	decodes, done, seqLen := true, int64(0), int64(src.Model.Size().SeqLen) // decodes: the tokens have a text
	out.Loss, err = e.loss(ctx, windows, func(predicted []uint32, rows int) {
		text, err := src.Tokenizer.Decode(predicted)
		out.Tokens, out.Bytes = out.Tokens+int64(len(predicted)), out.Bytes+int64(len(text))
		decodes = decodes && err == nil
		if done += int64(rows) * seqLen; progress != nil {
			progress(done, windows.Windows()*seqLen)
		}
	})
	if err != nil {
		return err
	}
	if out.Tokens == 0 {
		return usererror.Errorf("%s: no document of %s has more than one token, so nothing is predicted (data.document_mask)", out.Model,
			out.Text)
	}
	if math.IsNaN(out.Loss) || math.IsInf(out.Loss, 0) {
		return usererror.Errorf("%s: the loss on %s is %v: the model's weights, or what it computes with them, are not finite", out.Model,
			out.Text, out.Loss)
	}
	out.Perplexity = min(math.Exp(out.Loss), math.MaxFloat64) // JSON has no infinity
	if decodes && out.Bytes > 0 {
		out.BitsPerByte = out.Loss * float64(out.Tokens) / float64(out.Bytes) / math.Ln2
	} else {
		out.Bytes = 0
	}
	return nil
}

// evalProgram is the program of an evaluator.
const evalProgram = "eval"

// evaluator computes losses, a batch of sequences at a time.
type evaluator struct {
	session engine.Session
	rows    int // sequences of a batch
}

// loss is the mean negative log-likelihood of windows, in nats per predicted token, summed in float64 on the host. each
// gets the tokens that a batch predicts, and its windows.
func (e evaluator) loss(ctx context.Context, windows *data.Batcher, each func(predicted []uint32, rows int)) (float64, error) {
	total, rows := windows.Windows(), int64(e.rows)
	var sum, weight float64 // of windows, by the share of their tokens that are predicted
	err := overlap(ctx, (total+rows-1)/rows, func(i int64) (collect func() error, err error) {
		inputs, targets, segments, err := windows.Evaluated(i)
		if err != nil {
			return nil, usererror.New(err)
		}
		p, err := e.start(inputs, targets, segments)
		if err != nil {
			return nil, err
		}
		// After the last window the batcher starts over: rows beyond it do not count.
		valid, seqLen := int(min(rows, total-i*rows)), len(targets)/e.rows
		return func() error {
			b, err := p.Wait()
			if err != nil {
				return err
			}
			for _, l := range exec.ToF32(b)[:valid] {
				sum += float64(l)
			}
			predicted := data.Predicted(targets[:valid*seqLen])
			weight += float64(len(predicted)) / float64(seqLen)
			each(predicted, valid)
			return nil
		}, nil
	})
	return sum / weight, err
}

// overlap starts n batches in order. It collects each after it has started the next one, so that the device has work
// meanwhile.
func overlap(ctx context.Context, n int64, start func(i int64) (collect func() error, err error)) error {
	last := func() error { return nil }
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		next, err := start(i)
		if err != nil {
			return err
		}
		if err := last(); err != nil {
			return err
		}
		last = next
	}
	return last()
}

// start runs the program on sequences and enqueues the read of their losses. segments is nil if it has no such input.
func (e evaluator) start(tokens, targets []int32, segments []uint32) (device.Pending, error) {
	inputs := map[string][]byte{model.TokensInput: exec.IntBytes(tokens), model.TargetsInput: exec.IntBytes(targets)}
	if segments != nil {
		inputs[model.SegmentsInput] = exec.IntBytes(segments)
	}
	for name, content := range inputs {
		if err := e.session.SetInput(evalProgram, name, content); err != nil {
			return nil, err
		}
	}
	if err := e.session.RunAt(evalProgram, nil); err != nil {
		return nil, err
	}
	return e.session.Output(evalProgram, model.LossesOutput)
}
