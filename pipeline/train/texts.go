package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// Texts are the tokens of a run's files, for several attempts of a process to train on them; see Check.
type Texts struct {
	tok   tokenizer.Tokenizer
	train *data.Corpus
	val   *data.Corpus // nil without a validation split
	notes []string     // about what was found in the files
}

// readTexts reads the tokens of the config's files, or of the first part of a stream. mapper changes documents, and
// progress gets the numbers of bytes read and in all. Each may be nil.
func (j *job) readTexts(ctx context.Context, tok tokenizer.Tokenizer, mapper data.Mapper,
	progress func(done, total int64)) (*Texts, error) {
	c := j.config
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
	o := data.Options{Train: c.Data.Train, Val: c.Data.Val, ValFraction: c.Data.ValFraction, Field: c.Data.Field, Tokenizer: framed,
		Framing: &framing,
		Vocab:   c.Model.VocabSize, SeqLen: c.Model.SeqLen, Map: mapper, Aligned: c.Data.Aligned, Progress: progress,
		Stream: data.StreamOf(string(c.Stream())), Arrivals: j.options.Prepared.Arrivals}
	for _, s := range c.Data.Mix {
		o.Mix = append(o.Mix, data.Source(s))
	}
	if len(o.Val) > 0 {
		o.ValFraction = 0
	}
	t := &Texts{tok: tok}
	if t.train, t.val, err = data.Load(ctx, o); err != nil {
		return nil, inConfig(err)
	}
	return t, nil
}

// report notes what was found in the files.
func (t *Texts) report(note func(format string, args ...any)) {
	for _, s := range tokenizer.Notes(t.tok) {
		note("data.tokenizer: %s", s)
	}
	train := t.train.Findings()
	for _, s := range train.Notes() {
		note("training text: %s", s)
	}
	if read, all := t.train.Files(); read < all {
		note("data.stream: training begins with %d of the %d files; the others are read meanwhile, and the first pass takes one after the other",
			read, all)
	}
	if t.val == nil || t.val.Shares(t.train) {
		return
	}
	val := t.val.Findings()
	for _, s := range val.Notes() {
		note("validation text: %s", s)
	}
}

// Close releases the tokens.
func (t *Texts) Close() error {
	err := t.train.Close()
	if t.val != nil {
		err = errors.Join(err, t.val.Close())
	}
	return err
}

// texts returns the texts of the options, or reads them for this run, whose hooks may change documents. Notes about the
// files are reported in both cases.
func (j *job) texts(ctx context.Context) (*Texts, error) {
	report := j.options.Report
	if t := j.options.Prepared.Texts; t != nil {
		for _, n := range t.notes {
			report.Note("%s", n)
		}
		return t, nil
	}
	tok, err := tokenizer.Open(j.config.Data.Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("data.tokenizer: %w", err)
	}
	var notes []string
	note := func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf(format, args...))
		report.Note(format, args...)
	}
	progress := func(done, total int64) {
		report.Reading(done, total)
		j.hooks.Flush(note)
	}
	t, err := j.readTexts(ctx, tok, j.hooks.Documents.Open(), progress)
	if err != nil {
		return nil, err
	}
	j.hooks.Flush(note)
	j.hooks.Documents.Report(note)
	t.report(note)
	t.notes, j.read = notes, t
	return t, nil
}
