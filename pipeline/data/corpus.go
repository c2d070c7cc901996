package data

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Corpus is a stream of tokens, each below Vocab. Text is held in memory at 1, 2 or 4 bytes a token, .bin shards stay
// on disk. It is safe for concurrent use, except Close.
type Corpus struct {
	tokenFiles []tokenFile
	ends       []int64 // of each file, in tokens from the start of the first
	spans      []span  // the parts of it that are this corpus
	mixed      bool    // the spans have weights
	vocab      int
	hash       string // of the tokens of all files
	stats      Stats
	files      []*os.File
	mapped     int64 // documents that Options.Map was given
	found      Findings
	aligned    *alignment
	streamed   bool  // it is the first part of a stream
	rest       *rest // of the stream; nil: it is none
}

// span is the tokens of one source, from the start of the first file.
type span struct {
	from, to       int64
	weight, epochs float64 // of a mix: one of the two
}

func (s span) len() int64 { return s.to - s.from }

// tokenFile is the tokens of one file.
type tokenFile struct {
	path  string
	r     io.ReaderAt
	off   int64 // of the first token, in bytes
	width int   // bytes a token
	n     int64
}

// Stats counts what a corpus was made of, before any split.
type Stats struct {
	Files     int   `json:"files"`
	Documents int64 `json:"documents"` // of text and jsonl files
	Bytes     int64 `json:"bytes"`     // of all files
	Tokens    int64 `json:"tokens"`
}

func outside(path string, id uint32, at int64, vocab int) error {
	return fmt.Errorf("%s: token %d at position %d is outside the vocabulary of %d", path, id, at, vocab)
}

func memWidth(vocab int) int {
	if vocab <= 256 {
		return 1
	}
	return binWidth(vocab)
}

// loadSources reads the files of sources, which follow one another.
func loadSources(ctx context.Context, sources []Source, o Options, p *progress) (*Corpus, error) {
	c := &Corpus{vocab: o.Vocab, mixed: o.mixed()}
	for i, source := range sources {
		c.stats.Files += len(source.Train)
		o.Field = source.Field
		from := c.tokens()
		empty := c.found.EmptyFiles
		for _, path := range source.Train {
			if err := c.addFile(ctx, path, o, p); err != nil {
				c.Close()
				return nil, err
			}
		}
		if c.found.EmptyFiles-empty == int64(len(source.Train)) {
			c.Close()
			return nil, c.found.noDocument()
		}
		s := span{from, c.tokens(), source.Weight, source.Epochs}
		if s.len() == 0 && len(sources) > 1 {
			c.Close()
			return nil, fmt.Errorf("mix[%d]: the source has no tokens", i)
		}
		c.spans = append(c.spans, s)
	}
	if err := c.seal(); err != nil {
		c.Close()
		if c.mapped > 0 {
			err = fmt.Errorf("%w: hooks dropped all of its %d documents", err, c.mapped)
		}
		return nil, err
	}
	return c, nil
}

// tokens is the number of tokens of all files so far.
func (c *Corpus) tokens() int64 {
	if len(c.ends) == 0 {
		return 0
	}
	return c.ends[len(c.ends)-1]
}

func (c *Corpus) addFile(ctx context.Context, path string, o Options, p *progress) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	format, err := formatOf(path)
	if err != nil {
		return err
	}
	switch {
	case format.kind == kindBin && o.Map != nil:
		return fmt.Errorf("%s: token shards have no documents for a hook to map: expected text or .jsonl", path)
	case format.kind == kindBin:
		return c.addBin(path, p)
	}
	return c.addText(ctx, path, o, p)
}

func (c *Corpus) append(s tokenFile) {
	c.tokenFiles, c.ends = append(c.tokenFiles, s), append(c.ends, c.tokens()+s.n)
}

func (c *Corpus) addBin(path string, p *progress) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	st, err := f.Stat()
	if err != nil {
		return err
	}
	info, err := checkBin(f, st.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.append(tokenFile{path, f, binHeader, info.width, info.tokens})
	c.stats.Bytes += st.Size()
	p.add(st.Size())
	return nil
}

func (c *Corpus) addText(ctx context.Context, path string, o Options, p *progress) error {
	if o.Tokenizer == nil {
		return fmt.Errorf("%s: no tokenizer given for a file that is not .bin", path)
	}
	_, end := o.Tokenizer.EOS()
	c.found.WithoutEnd = !end
	w := memWidth(c.vocab)
	var buf []byte
	var n int64
	pieces := func(emit func(piece) error) error { return readPieces(path, o.Field, mark{}, emit) }
	encode := func(_ context.Context, p piece) encoded { return encodePiece(p, path, o.Tokenizer) }
	if o.Map != nil {
		pieces = func(emit func(piece) error) error { return readWhole(path, o.Field, emit) }
		encode = mapping{path, o.Tokenizer, o.Map, c.mapped}.encode
	}
	size, err := fileSize(path)
	if err != nil {
		return err
	}
	rest := size // not every byte belongs to a document
	empty := true
	err = encodeAll(ctx, pieces, encode, func(e encoded) error {
		for _, id := range e.ids {
			if int64(id) >= int64(c.vocab) {
				return outside(path, id, n, c.vocab)
			}
			buf = appendToken(buf, id, w)
			n++
		}
		c.stats.Documents += e.documents
		c.found.Documents += e.documents
		c.found.add(e.tally)
		c.found.see(path, e.piece)
		empty = empty && e.empty()
		c.mapped += e.mapped
		rest -= e.read
		p.add(e.read)
		return nil
	})
	if err != nil {
		return err
	}
	c.stats.Bytes += size
	p.add(rest)
	if empty {
		c.found.emptyFile(path)
	}
	if n > 0 { // hooks may have left nothing of the file
		c.append(tokenFile{path: path, r: bytes.NewReader(buf), width: w, n: n})
	}
	return nil
}

// scanChunk is how many tokens are read at once in a scan of a corpus.
const scanChunk = 1 << 15

// seal checks every token and takes the hash, once all files are there.
func (c *Corpus) seal() error {
	if c.stats.Tokens = c.tokens(); c.stats.Tokens == 0 {
		return errors.New("the corpus has no tokens")
	}
	sum := sha256.New()
	buf := make([]byte, 0, scanChunk*4)
	ids := make([]int32, scanChunk)
	for _, s := range c.tokenFiles {
		for at := int64(0); at < s.n; at += scanChunk {
			part := ids[:min(scanChunk, s.n-at)]
			if err := s.read(part, at); err != nil {
				return err
			}
			buf = buf[:0]
			for i, id := range part {
				if uint32(id) >= uint32(c.vocab) { // a uint32 above 2^31 shows as negative
					return outside(s.path, uint32(id), at+int64(i), c.vocab)
				}
				buf = appendToken(buf, uint32(id), binWidth(c.vocab))
			}
			sum.Write(buf)
		}
	}
	c.hash = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// read fills dst with the file's tokens from at on.
func (s tokenFile) read(dst []int32, at int64) error {
	buf := make([]byte, len(dst)*s.width)
	if _, err := s.r.ReadAt(buf, s.off+at*int64(s.width)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the file was cut since it was opened
		}
		return fmt.Errorf("%s: tokens %d to %d: %w", s.path, at, at+int64(len(dst)), err)
	}
	switch s.width {
	case 1:
		for i := range dst {
			dst[i] = int32(buf[i])
		}
	case 2:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(buf[2*i:]))
		}
	default:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint32(buf[4*i:]))
		}
	}
	return nil
}

// Len is the number of tokens.
func (c *Corpus) Len() (n int64) {
	for _, s := range c.spans {
		n += s.len()
	}
	return n
}

// Stats counts the files from which the corpus was read, before any split.
func (c *Corpus) Stats() Stats { return c.stats }

// Findings are about the files from which the corpus was read, before any split.
func (c *Corpus) Findings() Findings { return c.found }

// Shares reports whether two corpora are parts of the same tokens.
func (c *Corpus) Shares(other *Corpus) bool { return c.hash == other.hash }

// Hash identifies the tokens and their order, whatever files they came from.
func (c *Corpus) Hash() string {
	id := fmt.Appendf(nil, "%s %d", c.hash, binWidth(c.vocab))
	for _, s := range c.spans {
		id = fmt.Appendf(id, " %d %d", s.from, s.to)
	}
	sum := sha256.Sum256(id)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Read fills dst with the tokens from at on. The range must lie in the corpus.
func (c *Corpus) Read(dst []int32, at int64) error {
	if at < 0 || at+int64(len(dst)) > c.Len() {
		panic(fmt.Sprintf("data: tokens %d to %d of a corpus of %d", at, at+int64(len(dst)), c.Len()))
	}
	for _, s := range c.spans {
		if n := min(int64(len(dst)), s.len()-at); n > 0 {
			if err := c.read(dst[:n], s.from+at); err != nil {
				return err
			}
			dst, at = dst[n:], at+n
		}
		at -= s.len()
	}
	return nil
}

// read fills dst with tokens, at from the start of the first file on.
func (c *Corpus) read(dst []int32, at int64) error {
	i := sort.Search(len(c.ends), func(i int) bool { return c.ends[i] > at })
	for len(dst) > 0 {
		s := c.tokenFiles[i]
		inside := at - (c.ends[i] - s.n)
		part := dst[:min(int64(len(dst)), s.n-inside)]
		if err := s.read(part, inside); err != nil {
			return err
		}
		dst, at, i = dst[len(part):], at+int64(len(part)), i+1
	}
	return nil
}

// Split holds out the last ⌊fraction·W⌋ of the W windows of seqLen tokens of each source, at least one, and returns two
// corpora: the tokens before these windows, and the windows with the tail that fills no window. Both share c's files:
// close either.
func (c *Corpus) Split(fraction float64, seqLen int) (train, val *Corpus, err error) {
	t, v := *c, *c
	t.spans, v.spans = slices.Clone(c.spans), slices.Clone(c.spans)
	for i, s := range c.spans {
		w := (s.len() - 1) / int64(seqLen)
		if w < 2 {
			err := fmt.Errorf("found %d, but %d tokens are %d windows of it, expected at least 2, of which val_fraction holds one out",
				seqLen, s.len(), w)
			if c.mixed {
				err = fmt.Errorf("mix[%d]: %w", i, err)
			}
			return nil, nil, fielderror.Wrap("seq_len", err)
		}
		held := min(max(int64(fraction*float64(w)), 1), w-1)
		at := s.from + (w-held)*int64(seqLen)
		t.spans[i].to, v.spans[i].from = at+1, at
	}
	v.aligned, v.mixed, v.streamed = nil, false, false
	return &t, &v, nil
}

// UnigramEntropy is the entropy of the frequencies of single tokens, in nats a token: the loss of a model that knows
// nothing of context.
func (c *Corpus) UnigramEntropy() (float64, error) {
	counts := make([]int64, c.vocab)
	ids := make([]int32, scanChunk)
	for at := int64(0); at < c.Len(); at += scanChunk {
		part := ids[:min(scanChunk, c.Len()-at)]
		if err := c.Read(part, at); err != nil {
			return 0, err
		}
		for _, id := range part {
			counts[id]++
		}
	}
	h, n := 0.0, float64(c.Len())
	for _, k := range counts {
		if k > 0 {
			p := float64(k) / n
			h -= p * math.Log(p)
		}
	}
	return h, nil
}

// Close closes the shards.
func (c *Corpus) Close() error {
	var errs []error
	for _, f := range c.files {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.aligned.close(), c.rest.close())
	c.aligned = nil
	return errors.Join(errs...)
}
