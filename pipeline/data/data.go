// Package data turns files of documents and llm.c .bin shards into token streams, and streams into batches that are a
// pure function of seed and step.
//
// A text file is one document, as is an object of a JSON file and a row of a Parquet or Arrow file; texts and JSON may
// be compressed by gzip or zstd. Files need not be trusted: one that is damaged, or that expands without measure, is an
// error, and memory is bounded by the longest document. Where the tokenizer has a token that ends a document, it
// follows every document. Files are joined in the order given, matches of a glob in order of their names.
package data

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// Tokenizer is what this package needs of a tokenizer.
type Tokenizer interface {
	Name() string
	VocabSize() int
	// EncodePart encodes a piece of a document; first says that it is the document's first. Safe for concurrent use.
	EncodePart(text []byte, first bool) ([]uint32, error)
	EOS() (uint32, bool)
	Hash() string
}

// Mapper puts other documents in the place of each: none, one, several. index counts documents from 0, over all files.
// It is called from several goroutines. Its result must depend on index and text alone.
type Mapper interface {
	Map(ctx context.Context, index int64, text []byte) ([][]byte, error)
}

// Options says what Load reads.
type Options struct {
	Train       []string           // files and globs; excludes Mix
	Mix         []Source           // files and globs of several sources, and how often each is drawn from
	Val         []string           // files and globs; excludes ValFraction
	ValFraction float64            // share of Train's windows, taken from its end; in [0, 1)
	Field       string             // of Train and Val, and of sources that name none: of a jsonl object, or a column of a table; "" means "text"
	Tokenizer   Tokenizer          // may be nil if all files are .bin
	Framing     *tokenizer.Framing // of Tokenizer, which shards must have, too; nil: shards of any
	Vocab       int                // rows of the model's embedding: every token must be below
	SeqLen      int                // tokens of a window: ValFraction holds out whole windows

	Map Mapper // of the documents of Train; nil leaves them as they are

	Aligned []string // files of tensors with a row for each token of Train, as Map leaves it

	Stream   Stream   // how many files of Train are read before Load returns; excludes Mix, Map and Aligned
	Arrivals Arrivals // files of Train that are not there yet, if they are streamed; nil: all are there

	// Progress, if set, is called with the bytes of input read so far and in total, by one goroutine at a time.
	Progress func(done, total int64)
}

// Source is one of the sources of a mix. All sources of a mix have a weight, or all have epochs.
type Source struct {
	Train  []string // files and globs
	Weight float64  // share of the windows, in proportion to the weights of all sources
	Epochs float64  // passes over this source for one pass over the mix
	Field  string   // "": the field of the options
}

// Load reads the training and the held-out corpus; val is nil if none is asked for. Close both. The error of an option
// is a *fielderror.Error.
//
// With ValFraction f, of the W = (n−1)/SeqLen windows of the n training tokens the last ⌊f·W⌋ (at least one) are held
// out. No token is a target in both; the last target of the one is the first input of the other. Of a stream, the n
// tokens are those of its first part.
func Load(ctx context.Context, o Options) (train, val *Corpus, err error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	sources, err := o.sources()
	if err != nil {
		return nil, nil, err
	}
	streamed := o.Stream.Streams(o.Train, sources[0].Train)
	var valFiles []string
	if len(o.Val) > 0 {
		if valFiles, err = Expand(o.Val); err != nil {
			return nil, nil, fielderror.Wrap("val", err)
		}
	}
	if err := o.checkShards(valFiles); err != nil {
		return nil, nil, fielderror.Wrap("val", err)
	}
	lists := [][]string{valFiles}
	for i, s := range sources {
		key := "train"
		if len(o.Mix) > 0 {
			key = fmt.Sprintf("mix[%d].train", i)
		}
		if err := o.checkShards(s.Train); err != nil {
			return nil, nil, fielderror.Wrap(key, err)
		}
		lists = append(lists, s.Train)
	}
	if streamed {
		lists = lists[:1]
	}
	p, err := newProgress(o.Progress, lists...)
	if err != nil {
		return nil, nil, err
	}
	if streamed {
		train, err = loadStream(ctx, sources[0].Train, o, p)
	} else {
		train, err = loadSources(ctx, sources, o, p)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(o.Aligned) > 0 {
		if train.aligned, err = openAligned(o.Aligned, train.Len()); err != nil {
			train.Close()
			return nil, nil, fielderror.Wrap("aligned", err)
		}
	}
	if len(valFiles) > 0 {
		o.Map, o.Mix = nil, nil
		if val, err = loadSources(ctx, []Source{{Train: valFiles, Field: o.Field}}, o, p); err != nil {
			train.Close()
			return nil, nil, err
		}
		return train, val, nil
	}
	if o.ValFraction > 0 {
		t, v, err := train.Split(o.ValFraction, o.SeqLen)
		if err != nil {
			train.Close()
			return nil, nil, err
		}
		return t, v, nil
	}
	return train, nil, nil
}

func (o *Options) check() error {
	switch {
	case len(o.Train) == 0 && len(o.Mix) == 0:
		return fielderror.New("train", o.Train, "at least one file")
	case len(o.Train) > 0 && len(o.Mix) > 0:
		return fielderror.New("mix", len(o.Mix), "no sources beside train")
	case o.Vocab < 1 || int64(o.Vocab) > math.MaxInt32:
		return fielderror.New("vocab", o.Vocab, "1 to 2^31-1")
	case math.IsNaN(o.ValFraction) || o.ValFraction < 0 || o.ValFraction >= 1:
		return fielderror.New("val_fraction", o.ValFraction, "at least 0 and below 1")
	case o.ValFraction > 0 && len(o.Val) > 0:
		return fielderror.New("val_fraction", o.ValFraction, "0, since val names files")
	case (o.ValFraction > 0 || o.Stream != StreamNone) && o.SeqLen < 1:
		return fielderror.New("seq_len", o.SeqLen, "at least 1")
	case o.Stream != StreamNone && (len(o.Mix) > 0 || o.Map != nil || len(o.Aligned) > 0):
		return fielderror.New("stream", o.Stream, "none with mix, aligned, or hooks that change documents")
	}
	return nil
}

func (o *Options) mixed() bool { return len(o.Mix) > 1 }

// sources resolves the files of all sources. A file may be in one of them only.
func (o *Options) sources() ([]Source, error) {
	if len(o.Mix) == 0 {
		files, err := expand(o.Train, o.Arrivals != nil)
		return []Source{{Train: files, Field: o.Field}}, fielderror.Wrap("train", err)
	}
	if len(o.Mix) > maxSources {
		return nil, fielderror.New("mix", len(o.Mix), "at most %d sources", maxSources)
	}
	var sources []Source
	seen := map[string]bool{}
	for i, s := range o.Mix {
		name := func(key string) string { return fmt.Sprintf("mix[%d].%s", i, key) }
		switch {
		case !(s.Weight >= 0 && s.Weight <= math.MaxFloat32):
			return nil, fielderror.New(name("weight"), s.Weight, "a number above 0")
		case !(s.Epochs >= 0 && s.Epochs <= math.MaxFloat32):
			return nil, fielderror.New(name("epochs"), s.Epochs, "a number above 0")
		case (s.Weight > 0) == (s.Epochs > 0):
			return nil, fielderror.New(name("weight"), s.Weight, "a weight or epochs, one of the two")
		case (s.Weight > 0) != (o.Mix[0].Weight > 0):
			return nil, fielderror.New(name("weight"), s.Weight, "weights for all sources, or epochs for all")
		}
		files, err := Expand(s.Train)
		if err != nil {
			return nil, fielderror.Wrap(name("train"), err)
		}
		for _, f := range files {
			if seen[filepath.Clean(f)] {
				return nil, fielderror.Wrap(name("train"), fmt.Errorf("%s: listed twice", f))
			}
			seen[filepath.Clean(f)] = true
		}
		s.Train, s.Field = files, cmp.Or(s.Field, o.Field)
		sources = append(sources, s)
	}
	return sources, nil
}

// progress counts the bytes read of all files together.
type progress struct {
	report      func(done, total int64)
	done, total int64
}

func newProgress(report func(done, total int64), lists ...[]string) (*progress, error) {
	p := &progress{report: report}
	for _, files := range lists {
		for _, f := range files {
			if err := p.expect(f); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// expect raises what there is to read by a file.
func (p *progress) expect(path string) error {
	n, err := fileSize(path)
	p.total += n
	return err
}

func (p *progress) add(n int64) {
	p.done += n
	if p.report != nil {
		p.report(p.done, p.total)
	}
}
