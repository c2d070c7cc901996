package train

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// evalProgram is the program of an Evaluate.
const evalProgram = "eval"

// evaluation looks at windows of a batcher in their order.
type evaluation struct {
	session engine.Session
	windows *data.Batcher
	rows    int   // windows a run of the program
	limit   int64 // windows to look at, at most
}

// loss is the mean negative log-likelihood in nats per token, summed on the host in float64. Reads are collected a run
// late.
func (e evaluation) loss(ctx context.Context, each func(inputs, targets []int32, losses []float32)) (float64, error) {
	total := min(e.windows.Windows(), e.limit)
	var sum float64
	var last func() error
	for at := int64(0); at < total; at += int64(e.rows) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		inputs, targets, err := e.windows.Batch(at / int64(e.rows))
		if err != nil {
			return 0, usererror.New(err)
		}
		p, err := runOn(e.session, evalProgram, inputs, targets, model.LossesOutput)
		if err != nil {
			return 0, err
		}
		if last != nil {
			if err := last(); err != nil {
				return 0, err
			}
		}
		// The batcher begins anew after the last window: rows beyond it are not counted.
		valid := int(min(int64(e.rows), total-at))
		last = func() error {
			b, err := p.Wait()
			if err != nil {
				return err
			}
			losses := exec.ToF32(b)[:valid]
			for _, l := range losses {
				sum += float64(l)
			}
			if each != nil {
				each(inputs, targets, losses)
			}
			return nil
		}
	}
	if err := last(); err != nil {
		return 0, err
	}
	return sum / float64(total), nil
}

// evaluate is the validation loss of the run's present weights, summed in float64. When ctx ends it stops between batches.
func (r *run) evaluate(ctx context.Context) (float64, error) {
	total, rows := r.data.val.Windows(), int64(r.Rows())
	if r.Train.EvalBatches > 0 {
		total = min(total, int64(r.Train.EvalBatches)*int64(r.Train.BatchSize))
	}
	var sum float64
	err := r.engine.Evaluate(ctx, engine.Tokens(r.data.val.Batch), int((total+rows-1)/rows), func(m engine.Measured) error {
		// The batcher begins anew after the last window: rows beyond it are not counted.
		for _, l := range m.Losses[:min(rows, total-int64(m.Batch)*rows)] {
			sum += float64(l)
		}
		return nil
	})
	return sum / float64(total), err
}

// runOn runs a program on sequences and enqueues the read of one of its outputs.
func runOn(s engine.Session, program string, tokens, targets []int32, output string) (device.Pending, error) {
	if err := s.SetInput(program, model.TokensInput, bytesOfI32(tokens)); err != nil {
		return nil, err
	}
	if err := s.SetInput(program, model.TargetsInput, bytesOfI32(targets)); err != nil {
		return nil, err
	}
	if err := s.RunAt(program, nil); err != nil {
		return nil, err
	}
	return s.Output(program, output)
}

func bytesOfI32(x []int32) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	return b
}

// EvalOptions say what to evaluate and on what.
type EvalOptions struct {
	From       string   // a run folder, a checkpoint, or a folder in Hugging Face's layout
	Data       []string // files; empty: the held-out text of the run
	Tokenizer  string   // empty: the model's own
	Weights    Weights  // "": x
	SeqLen     int      // 0: the model's context
	BatchSize  int      // sequences at a time
	Device     string
	OpenDevice layout.OpenDevice
	Execute    engine.Executor // nil: runtime/exec
	Progress   func(done, total int64)
	Note       func(format string, args ...any) // messages for the user; nil: none
}

// Evaluation is how well a model predicts a text.
type Evaluation struct {
	Model          string  `json:"model"`
	Weights        Weights `json:"weights"`
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
	text, name, err := src.text(ctx, o)
	if err != nil {
		return out, usererror.New(err)
	}
	defer text.Close()
	if err := src.shorten(o.SeqLen); err != nil {
		return out, usererror.New(err)
	}
	windows, err := data.NewBatcher(text, data.BatchConfig{SeqLen: src.Model.Size().SeqLen, BatchSize: o.BatchSize})
	if err != nil {
		return out, usererror.New(err)
	}
	g, err := src.Model.Eval(o.BatchSize)
	if err != nil {
		return out, usererror.New(err)
	}
	s, err := src.load(o.Device, o.OpenDevice, o.Execute, map[string]*graph.Graph{evalProgram: g})
	if err != nil {
		return out, err
	}
	defer s.Close()
	out = Evaluation{Model: src.Dir, Weights: cmp.Or(o.Weights, WeightsX), Text: name}
	if out.UnigramEntropy, err = text.UnigramEntropy(); err != nil {
		return out, usererror.New(err)
	}
	return out, out.measure(ctx, evaluation{s, windows, o.BatchSize, math.MaxInt64}, src, o.Progress)
}

// shorten changes the length of the sequences that the model looks at; 0 keeps it.
func (src *Source) shorten(seqLen int) error {
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

// measure fills in the loss and what follows from it.
func (out *Evaluation) measure(ctx context.Context, e evaluation, src *Source, progress func(done, total int64)) (err error) {
	spelled := true
	out.Loss, err = e.loss(ctx, func(_, targets []int32, losses []float32) {
		n := len(losses) * src.Model.Size().SeqLen
		out.Tokens += int64(n)
		ids := make([]uint32, n)
		for i := range ids {
			ids[i] = uint32(targets[i])
		}
		text, err := src.Tokenizer.Decode(ids)
		out.Bytes += int64(len(text))
		spelled = spelled && err == nil
		if progress != nil {
			progress(out.Tokens, e.windows.Windows()*int64(src.Model.Size().SeqLen))
		}
	})
	if err != nil {
		return err
	}
	if !finite(out.Loss) {
		return usererror.Errorf("%s: the loss on %s is %v: the model's weights, or what it computes with them, are not finite", out.Model, out.Text, out.Loss)
	}
	out.Perplexity = min(math.Exp(out.Loss), math.MaxFloat64) // JSON has no infinity
	if spelled && out.Bytes > 0 {
		out.BitsPerByte = out.Loss * float64(out.Tokens) / float64(out.Bytes) / math.Ln2
	} else {
		out.Bytes = 0
	}
	return nil
}
