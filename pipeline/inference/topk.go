package inference

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// MaxTopK is the most predictions that TopK stores for a token.
const MaxTopK = 64

// TopKOptions select the text to predict, and the file for the predictions.
type TopKOptions struct {
	From      string   // as OpenModel takes it
	Data      []string // files; empty: the training and validation text of the run, as its hooks mapped it
	Field     string   // of a jsonl object; "": text
	K         int      // predictions a token
	Out       string   // the file to write
	Force     bool     // replace an earlier one
	Tokenizer string   // empty: the model's own
	Weights   Version  // "": x
	SeqLen    int      // of the windows; 0: the model's context
	BatchSize int      // windows at a time
	Target    Target
	Progress  func(done, total int64)
	Note      func(format string, args ...any) // messages for the user; nil: none
}

// Stored describes the written file.
type Stored struct {
	Out     string  `json:"out"`
	Model   string  `json:"model"` // the folder that the tensors come from
	Weights Version `json:"weights"`
	Text    string  `json:"text"`
	Tokens  int64   `json:"tokens"`
	K       int     `json:"k"`
	SeqLen  int     `json:"seq_len"`
	Bytes   int64   `json:"bytes"` // of tensors
}

// The tensors that TopK writes, each with a row for every token.
const (
	teacherIDs      = "teacher_ids"      // U32 [tokens, k]
	teacherLogProbs = "teacher_logprobs" // F32 [tokens, k], natural logarithms
)

// TopK writes, for each token of a text, the k most likely next tokens by a model and the logarithms of their
// probabilities, in descending order: the tensors teacher_ids and teacher_logprobs of a safetensors file, for
// data.aligned. The text is cut into windows as for training: window n begins at token n·T, and the last one may be
// shorter. A model that was trained with data.document_mask attends within documents. The file appears whole or not at
// all.
func TopK(ctx context.Context, o TopKOptions) (out Stored, err error) {
	if err := o.check(); err != nil {
		return out, usererror.New(err)
	}
	src, err := OpenWeights(o.From, nil, o.Tokenizer, o.Weights, o.Note)
	if err != nil {
		return out, err
	}
	defer src.Close()
	text, name, err := src.trainingText(ctx, o.Data, cmp.Or(o.Field, "text"))
	if err != nil {
		return out, usererror.New(err)
	}
	defer text.Close()
	reportFindings(text, o.Data, o.Note)
	if err := src.setSeqLen(o.SeqLen); err != nil {
		return out, usererror.New(err)
	}
	p := predictor{text: text, model: src.Model, options: o}
	if src.masks() {
		if p.ends, err = src.ends(); err != nil {
			return out, usererror.New(err)
		}
	}
	g, err := src.Model.TopK(o.BatchSize, o.K, p.ends != nil)
	if err != nil {
		return out, usererror.New(err)
	}
	if p.session, err = src.load(o.Target, map[string]*graph.Graph{topKProgram: g}); err != nil {
		return out, err
	}
	defer p.session.Close()
	out = Stored{Out: o.Out, Model: src.Dir, Weights: cmp.Or(o.Weights, VersionX), Text: name, Tokens: text.Len(), K: o.K,
		SeqLen: src.Model.Size().SeqLen, Bytes: 8 * text.Len() * int64(o.K)}
	return out, p.store(ctx)
}

func (o TopKOptions) check() error {
	if o.K < 1 || o.K > MaxTopK {
		return fmt.Errorf("k: found %d, expected an integer from 1 to %d", o.K, MaxTopK)
	}
	if o.Out == "" {
		return errors.New("out: found nothing, expected the file to write")
	}
	st, err := os.Stat(o.Out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_, err = os.Stat(filepath.Dir(o.Out))
		return err
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s: found a folder or a special file, expected a file to write", o.Out)
	case !o.Force:
		return fmt.Errorf("%s: it is there already: replace it with --force, or choose another file", o.Out)
	}
	return nil
}

const topKProgram = "topk"

// predictor predicts a text, one batch of windows after another.
type predictor struct {
	session engine.Session
	text    *data.Corpus
	model   model.Model
	options TopKOptions
	ends    []uint32 // of documents, which tokens attend within; nil: they attend across documents
}

// predicted is a batch in progress.
type predicted struct {
	at, tokens    int64 // of the text
	ids, logProbs device.Pending
}

// store writes the file. The file holds one tensor after the other, so the second one is collected in a temporary file.
func (p *predictor) store(ctx context.Context) error {
	spool, err := os.CreateTemp(filepath.Dir(p.options.Out), ".topk-*")
	if err != nil {
		return usererror.New(err)
	}
	os.Remove(spool.Name()) // at once, if the system can: it then disappears with the process
	defer func() {
		spool.Close()
		os.Remove(spool.Name())
	}()
	shape := []int{int(p.text.Len()), p.options.K}
	var failed error
	err = safetensors.Write(p.options.Out, []safetensors.Entry{
		{Name: teacherIDs, DType: safetensors.U32, Shape: shape, WriteTo: func(w io.Writer) error {
			failed = p.predict(ctx, w, spool)
			return failed
		}},
		{Name: teacherLogProbs, DType: safetensors.F32, Shape: shape, WriteTo: func(w io.Writer) error {
			if _, err := spool.Seek(0, io.SeekStart); err != nil {
				return err
			}
			_, err := io.Copy(w, spool)
			return err
		}},
	})
	if failed != nil {
		return failed
	}
	return usererror.New(err)
}

// predict writes the predictions of the whole text.
func (p *predictor) predict(ctx context.Context, ids, logProbs io.Writer) error {
	step := int64(p.options.BatchSize) * int64(p.model.Size().SeqLen)
	return overlap(ctx, (p.text.Len()+step-1)/step, func(i int64) (collect func() error, err error) {
		tokens := make([]int32, step) // tokens after the text do not affect those before
		at := i * step
		n := min(step, p.text.Len()-at)
		if err := p.text.Read(tokens[:n], at); err != nil {
			return nil, usererror.New(err)
		}
		b, err := p.start(tokens)
		if err != nil {
			return nil, err
		}
		b.at, b.tokens = at, n
		return func() error { return p.collect(b, ids, logProbs) }, nil
	})
}

// start runs the program on tokens and enqueues the read of its predictions.
func (p *predictor) start(tokens []int32) (out *predicted, err error) {
	out = &predicted{}
	if err = p.session.SetInput(topKProgram, model.TokensInput, exec.IntBytes(tokens)); err != nil {
		return nil, err
	}
	if p.ends != nil {
		segments := data.Segments(tokens, p.model.Size().SeqLen, p.ends)
		if err = p.session.SetInput(topKProgram, model.SegmentsInput, exec.IntBytes(segments)); err != nil {
			return nil, err
		}
	}
	if err = p.session.RunAt(topKProgram, nil); err != nil {
		return nil, err
	}
	if out.ids, err = p.session.Output(topKProgram, model.TopIDsOutput); err != nil {
		return nil, err
	}
	out.logProbs, err = p.session.Output(topKProgram, model.TopLogProbsOutput)
	return out, err
}

// collect waits for a batch and writes its predictions.
func (p *predictor) collect(b *predicted, ids, logProbs io.Writer) error {
	i, err := b.ids.Wait()
	if err != nil {
		return err
	}
	l, err := b.logProbs.Wait()
	if err != nil {
		return err
	}
	size := 4 * int(b.tokens) * p.options.K
	for n, x := range exec.ToF32(l[:size]) {
		if x64 := float64(x); math.IsNaN(x64) || math.IsInf(x64, 0) {
			return usererror.Errorf("%s: what it predicts after token %d of the text is not finite", p.options.From,
				b.at+int64(n/p.options.K))
		}
	}
	if _, err := ids.Write(i[:size]); err != nil {
		return usererror.New(err)
	}
	if _, err := logProbs.Write(l[:size]); err != nil {
		return usererror.New(err)
	}
	if p.options.Progress != nil {
		p.options.Progress(b.at+b.tokens, p.text.Len())
	}
	return nil
}
