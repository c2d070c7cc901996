package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
)

// corpus is the text of a run, as tokens and as batches of windows.
type corpus struct {
	texts      *Texts
	train, val *data.Batcher // val is nil without a validation split
	predicted  *predicted    // by an evaluation; nil: not counted yet
	entropy    float64       // of single tokens of the validation text (of the training text without one), in nats
}

// deal makes batches of texts. valBatch is the number of sequences per batch of an evaluation.
func (t *Texts) deal(c config.Config, valBatch int) (*corpus, error) {
	d := &corpus{texts: t}
	b := data.BatchConfig{SeqLen: c.Model.SeqLen, BatchSize: c.Train.BatchSize, Shuffle: c.Data.Shuffle, Seed: c.Data.Seed}
	if c.Data.Documents() {
		b.Pack, b.DocumentMask = c.Data.Pack, c.Data.DocumentMask
		ends, err := t.ends(c.Data)
		if err != nil {
			return nil, err
		}
		b.SetEnds(ends)
	}
	var err error
	if d.train, err = data.NewBatcher(t.train, b); err != nil {
		var named *fielderror.Error
		if errors.As(err, &named) {
			return nil, inConfig(err)
		}
		return nil, fmt.Errorf("data.train: %w", err)
	}
	text := t.train
	if t.val != nil {
		text = t.val
		// Not packed, so that losses of different packings can be compared.
		if d.val, err = data.NewBatcher(t.val, data.BatchConfig{SeqLen: c.Model.SeqLen, BatchSize: valBatch, DocumentMask: b.DocumentMask,
			Separator: b.Separator, OtherEnds: b.OtherEnds}); err != nil {
			return nil, fmt.Errorf("data.val: %w", inConfig(err))
		}
	}
	d.entropy, err = text.UnigramEntropy()
	return d, err
}

// inConfig gives an error about an option of package data the name of its key.
func inConfig(err error) error {
	return fielderror.Rename(err, func(field string) string {
		if field == "seq_len" {
			return "model.seq_len"
		}
		return "data." + field
	})
}

// ends are the tokens that end documents.
func (t *Texts) ends(c config.Data) ([]uint32, error) {
	ids := c.Ends(t.tok.Special())
	if len(ids) == 0 {
		return nil, usererror.Errorf("data.separator: the tokenizer %q has no token that ends documents: expected the number of one",
			t.tok.Name())
	}
	return ids, nil
}

// sizes are the tokens of the splits; streamed training text counts its first part.
func (d *corpus) sizes() map[string]int64 {
	m := map[string]int64{"train": d.texts.train.Len()}
	if d.texts.val != nil {
		m["val"] = d.texts.val.Len()
	}
	return m
}

// openCorpus reads the text, which hooks may change, and makes batches of it.
func (j *job) openCorpus(ctx context.Context) error {
	c := j.config
	t, err := j.texts(ctx)
	if err == nil {
		j.corpus, err = t.deal(c, c.Rows())
	}
	if err == nil {
		j.reportMix()
		if c.Train.KeepBest && t.val == nil {
			err = config.Invalid("train.keep_best", true, "false without validation text: set data.val or data.val_fraction")
		}
	}
	return usererror.New(data.FieldSetting(err, "data.field"))
}

// await runs what may wait for text, and reports what it waits for and what was found in files that were read
// meanwhile. due ends the wait with an error; nil: nothing does.
func (j *job) await(wait func(each func(data.Waiting) error) error, due func() error) error {
	report, noted := j.options.Report, 0
	err := wait(func(w data.Waiting) error {
		if w.Number != noted {
			noted = w.Number
			report.Note("waiting for the training text: %s, file %d of %d", w.File, w.Number, w.Files)
		}
		report.Reading(w.Done, w.Total)
		if due == nil {
			return nil
		}
		return due()
	})
	j.noteLate(false)
	return usererror.New(data.FieldSetting(err, "data.field"))
}

// noteLate reports what was found in files of a stream while the run trained, at its end also if not all were read.
func (j *job) noteLate(end bool) {
	if j.corpus == nil {
		return
	}
	for _, s := range j.corpus.texts.train.Late(end) {
		j.options.Report.Note("training text: %s", s)
	}
}

// reportMix reports what the steps of the run draw from each source of data.mix.
func (j *job) reportMix() {
	for i, s := range j.corpus.train.Drawn(j.config.Sequences(0, j.config.Train.Steps)) {
		j.options.Report.Note("data.mix[%d]: %.2f %% of the windows, %.2f epochs of %d windows", i, 100*s.Share, s.Epochs(), s.Windows)
	}
}
