package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// corpus is the text of a run, as tokens and as batches of windows.
type corpus struct {
	tok        tokenizer.Tokenizer
	trainText  *data.Corpus
	valText    *data.Corpus // nil without a validation split
	train, val *data.Batcher
	predicted  *predicted // by an evaluation; nil: not counted yet
	entropy    float64    // of single tokens of the validation text (of the training text without one), in nats
}

// openCorpus reads the tokens of a config's files. valBatch is the number of sequences per batch of an evaluation.
func openCorpus(ctx context.Context, c config.Config, tok tokenizer.Tokenizer, valBatch int, hooks data.Mapper, progress func(done, total int64)) (*corpus, error) {
	if err := tokenizer.CheckRows(tok, c.Model.VocabSize); err != nil {
		if c.Init.From != "" {
			return nil, fmt.Errorf("data.tokenizer: %w; init.extend_vocab: true adds rows to those of init.from (%s)", err, c.Init.From)
		}
		return nil, fmt.Errorf("model.vocab_size: found %d: %w", c.Model.VocabSize, err)
	}
	framing := c.Data.Framing()
	framed, err := framing.Frame(tok)
	if err != nil {
		return nil, fmt.Errorf("data.bos: %w", err)
	}
	o := data.Options{Train: c.Data.Train, Val: c.Data.Val, ValFraction: c.Data.ValFraction, Field: c.Data.Field, Tokenizer: framed, Framing: &framing,
		Vocab: c.Model.VocabSize, SeqLen: c.Model.SeqLen, Map: hooks, Aligned: c.Data.Aligned, Progress: progress}
	for _, s := range c.Data.Mix {
		o.Mix = append(o.Mix, data.Source(s))
	}
	if len(o.Val) > 0 {
		o.ValFraction = 0
	}
	d := &corpus{tok: tok}
	if d.trainText, d.valText, err = data.Load(ctx, o); err != nil {
		return nil, inConfig(err)
	}
	if err := d.deal(c, valBatch); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *corpus) deal(c config.Config, valBatch int) (err error) {
	b := data.BatchConfig{SeqLen: c.Model.SeqLen, BatchSize: c.Train.BatchSize, Shuffle: c.Data.Shuffle, Seed: c.Data.Seed}
	if c.Data.Documents() {
		b.Pack, b.DocumentMask = c.Data.Pack, c.Data.DocumentMask
		ends, err := d.ends(c.Data)
		if err != nil {
			return err
		}
		b.SetEnds(ends)
	}
	if d.train, err = data.NewBatcher(d.trainText, b); err != nil {
		var named *fielderror.Error
		if errors.As(err, &named) {
			return inConfig(err)
		}
		return fmt.Errorf("data.train: %w", err)
	}
	text := d.trainText
	if d.valText != nil {
		text = d.valText
		// Not packed, so that losses of different packings can be compared.
		if d.val, err = data.NewBatcher(d.valText, data.BatchConfig{SeqLen: c.Model.SeqLen, BatchSize: valBatch, DocumentMask: b.DocumentMask, Separator: b.Separator, OtherEnds: b.OtherEnds}); err != nil {
			return fmt.Errorf("data.val: %w", inConfig(err))
		}
	}
	d.entropy, err = text.UnigramEntropy()
	return err
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
func (d *corpus) ends(c config.Data) ([]uint32, error) {
	ids := c.Ends(d.tok.Special())
	if len(ids) == 0 {
		return nil, usererror.Errorf("data.separator: the tokenizer %q has no token that ends documents: expected the number of one", d.tok.Name())
	}
	return ids, nil
}

func (d *corpus) sizes() map[string]int64 {
	m := map[string]int64{"train": d.trainText.Len()}
	if d.valText != nil {
		m["val"] = d.valText.Len()
	}
	return m
}

func (d *corpus) close() error {
	err := d.trainText.Close()
	if d.valText != nil {
		err = errors.Join(err, d.valText.Close())
	}
	return err
}

// openCorpus reads the text, which hooks may map.
func (j *job) openCorpus(ctx context.Context) error {
	c, report := j.config, j.options.Report
	tok, err := tokenizer.Open(c.Data.Tokenizer)
	if err != nil {
		return usererror.New(fmt.Errorf("data.tokenizer: %w", err))
	}
	progress := func(done, total int64) {
		report.Reading(done, total)
		j.hooks.Flush(report.Note)
	}
	if j.corpus, err = openCorpus(ctx, c, tok, c.Rows(), j.hooks.Documents.Open(), progress); err == nil {
		j.hooks.Documents.Report(report.Note)
		j.corpus.report(report.Note)
		j.reportMix()
		if c.Train.KeepBest && j.corpus.valText == nil {
			err = config.Invalid("train.keep_best", true, "false without validation text: set data.val or data.val_fraction")
		}
	}
	return usererror.New(data.FieldSetting(err, "data.field"))
}

// report notes what was found in the files.
func (d *corpus) report(note func(format string, args ...any)) {
	train := d.trainText.Findings()
	for _, s := range train.Notes() {
		note("training text: %s", s)
	}
	if d.valText == nil || d.valText.Shares(d.trainText) {
		return
	}
	val := d.valText.Findings()
	for _, s := range val.Notes() {
		note("validation text: %s", s)
	}
}

// reportMix reports what the steps of the run draw from each source of data.mix.
func (j *job) reportMix() {
	for i, s := range j.corpus.train.Drawn(j.config.Sequences(0, j.config.Train.Steps)) {
		j.options.Report.Note("data.mix[%d]: %.2f %% of the windows, %.2f epochs of %d windows", i, 100*s.Share, s.Epochs(), s.Windows)
	}
}
