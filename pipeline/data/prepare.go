package data

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// PrepareOptions describe the input of Prepare and the data set that it makes.
type PrepareOptions struct {
	Inputs    []string // text and jsonl files and globs
	Val       []string // files and globs for the held-out shards; excludes ValTokens
	ValTokens int64    // held out instead: the first tokens of Inputs, as one shard, as llm.c's own data sets do
	OutDir    string
	Tokenizer Tokenizer
	Framing   tokenizer.Framing // of Tokenizer
	Field     string            // of a jsonl object; "" means "text"

	// ShardTokens is the length of a shard; 0 means 100 million.
	ShardTokens int64

	// Progress, if set, is called with the bytes of input done and in total, and the number of shards written.
	Progress func(done, total int64, shards int)
}

const defaultShardTokens = 100_000_000

// Prepare tokenises text into llm.c shards: val_000000.bin …, train_000001.bin …, beside manifest.json. Killed and
// started again with the same options it continues after the last finished shard, and ends with the same bytes as an
// uninterrupted run. A folder with other shards in it is refused.
func Prepare(ctx context.Context, o PrepareOptions) (*Manifest, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	inputs, err := textFiles(o.Inputs)
	if err != nil {
		return nil, err
	}
	var val []string
	if len(o.Val) > 0 {
		if val, err = textFiles(o.Val); err != nil {
			return nil, err
		}
	}
	if err := atomicfile.CheckName(o.OutDir); err != nil {
		return nil, err
	}
	missing := atomicfile.MissingFolders(o.OutDir)
	if err := os.MkdirAll(o.OutDir, 0o755); err != nil {
		return nil, err
	}
	release, err := lock.Folder(o.OutDir)
	if err != nil && !errors.Is(err, lock.ErrUnsupported) {
		return nil, err
	}
	if release == nil {
		release = func() {}
	}
	m, err := o.prepare(ctx, inputs, val)
	release()
	if err != nil {
		for _, dir := range missing {
			os.Remove(dir) // only while it is empty
		}
	}
	return m, err
}

// prepare is Prepare on files that are there and a folder that no one else writes to.
func (o *PrepareOptions) prepare(ctx context.Context, inputs, val []string) (*Manifest, error) {
	_, err := os.Lstat(filepath.Join(o.OutDir, manifestName))
	begun := err == nil
	fresh, err := newManifest(ctx, *o, inputs, val)
	if err != nil {
		return nil, err
	}
	m, err := openManifest(o.OutDir, fresh)
	if err != nil {
		return nil, err
	}
	if m.Complete {
		return m, nil
	}
	log, err := openHashLog(o.OutDir, m.counts("val").Documents+m.counts("train").Documents)
	if err != nil {
		return nil, err
	}
	for _, s := range []*stream{{split: "val", files: m.Val, found: &m.found, log: log},
		{split: "train", files: m.Inputs, found: &m.found, log: log}} {
		if err := o.run(ctx, m, s); err != nil {
			if !begun && (len(m.Shards) == 0 || errors.Is(err, ErrTooShort)) { // nothing to go on from
				return nil, errors.Join(err, log.remove(), m.remove(o.OutDir))
			}
			return nil, errors.Join(err, log.close())
		}
	}
	if m.Statistics, err = m.statistics(log); err != nil {
		return nil, errors.Join(err, log.close())
	}
	m.Complete = true
	return m, errors.Join(m.save(o.OutDir), log.remove())
}

func (o *PrepareOptions) check() error {
	if o.ShardTokens == 0 {
		o.ShardTokens = defaultShardTokens
	}
	switch {
	case o.Tokenizer == nil:
		return errors.New("no tokenizer given")
	case o.OutDir == "":
		return errors.New("no output folder given")
	case o.ShardTokens < 1 || o.ShardTokens > MaxShard:
		return fmt.Errorf("shards of %d tokens: expected 1 to %d", o.ShardTokens, MaxShard)
	case o.ValTokens < 0 || o.ValTokens > MaxShard:
		return fmt.Errorf("%d held-out tokens: expected 0 to %d", o.ValTokens, MaxShard)
	case o.ValTokens > 0 && len(o.Val) > 0:
		return errors.New("both held-out files and a number of held-out tokens: expected one of the two")
	}
	return nil
}

func textFiles(patterns []string) ([]string, error) {
	files, err := Expand(patterns)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if format, _ := formatOf(f); format.kind == kindBin {
			return nil, fmt.Errorf("%s: already a token shard: expected files of documents", f)
		}
	}
	return files, nil
}

// place is where a shard begins or ends in the inputs: after Skip tokens of the piece at a mark of a file.
type place struct {
	File int `json:"file"` // index in the list of inputs
	mark
	Skip int64 `json:"skip"`
}

// stream is the tokens of one list of files on their way into shards.
type stream struct {
	split string
	files []InputFile

	counts counts
	found  *Findings
	log    *hashLog     // of all streams; nil: it was lost
	number int          // of the next shard
	want   int64        // tokens of it
	w      *shardWriter // the shard begun; nil before its first token
}

func (o *PrepareOptions) run(ctx context.Context, m *Manifest, s *stream) error {
	if s.split == "train" {
		s.number = m.firstTrain()
	}
	defer func() { s.w.discard() }()
	var from place
	for _, shard := range m.Shards {
		if shard.Stream == s.split {
			s.number, from, s.counts = s.number+1, shard.End, shard.Counts
		}
	}
	s.want = o.length(s)
	done := m.bytesBefore(s.split, from)
	report := func() {
		if o.Progress != nil {
			o.Progress(done, m.bytes(), len(m.Shards))
		}
	}
	report()
	for f := from.File; f < len(s.files); f++ {
		at := mark{}
		skip := int64(0)
		if f == from.File {
			at, skip = from.mark, from.Skip
		}
		empty := at == mark{}
		err := encodeFile(ctx, s.files[f].Path, o.Field, at, o.Tokenizer, func(e encoded) error {
			if int64(len(e.ids)) < skip {
				return fmt.Errorf("%s: changed since the shards before were written", s.files[f].Path)
			}
			if err := o.feed(m, s, place{f, e.mark, skip}, e.ids[skip:]); err != nil {
				return err
			}
			if err := s.counts.add(e, s.log); err != nil {
				return err
			}
			skip = 0
			empty = empty && e.empty()
			s.found.see(s.files[f].Path, e.piece)
			done += e.read
			report()
			return nil
		})
		if err != nil {
			return err
		}
		if empty {
			s.counts.EmptyFiles++
			s.found.emptyFile(s.files[f].Path)
		}
		done = m.bytesBefore(s.split, place{File: f + 1}) // not every byte belongs to a document
		report()
	}
	if err := o.finish(m, s, place{File: len(s.files)}); err != nil {
		return err
	}
	report()
	return o.checkSplit(m, s)
}

// finish ends a stream: with the shard that it has begun, or with the last one, which was full at its last token.
func (o *PrepareOptions) finish(m *Manifest, s *stream, end place) error {
	if s.w != nil {
		return o.flush(m, s, end)
	}
	last := len(m.Shards) - 1
	if last < 0 || m.Shards[last].Stream != s.split || m.Shards[last].End == end {
		return nil
	}
	m.Shards[last].End, m.Shards[last].Counts = end, s.counts
	return errors.Join(s.log.sync(), m.save(o.OutDir))
}

// length is how many tokens the next shard of s takes.
func (o *PrepareOptions) length(s *stream) int64 {
	if s.split == "train" && s.number == 0 {
		return o.ValTokens
	}
	return o.ShardTokens
}

// ErrTooShort reports that the inputs leave no token to train on.
var ErrTooShort = errors.New("the inputs are too short")

// checkSplit refuses to end without training tokens.
func (o *PrepareOptions) checkSplit(m *Manifest, s *stream) error {
	if s.split == "train" && s.number < 2 {
		if n := int64(len(s.files)); s.counts.EmptyFiles == n && n > 0 && s.number == m.firstTrain() {
			s.found.Tally = s.counts.Tally
			return s.found.noDocument()
		}
		return fmt.Errorf("%w: they have fewer than the %d tokens to hold out and one to train on", ErrTooShort, o.ValTokens)
	}
	return nil
}

// feed takes the tokens of one piece, which begins at p, and writes the shards that become full.
func (o *PrepareOptions) feed(m *Manifest, s *stream, p place, ids []uint32) error {
	vocab := o.Tokenizer.VocabSize()
	for _, id := range ids {
		if int64(id) >= int64(vocab) {
			return outside(s.files[p.File].Path, id, p.Skip, vocab)
		}
		if s.w == nil {
			var err error
			if s.w, err = newShardWriter(o.OutDir, binWidth(vocab)); err != nil {
				return err
			}
		}
		if err := s.w.token(id); err != nil {
			return err
		}
		p.Skip++
		if s.w.n == s.want {
			if err := o.flush(m, s, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush finishes the shard that s has begun, which ends at p, and then the manifest.
func (o *PrepareOptions) flush(m *Manifest, s *stream, p place) error {
	path := filepath.Join(o.OutDir, shardName(s.split, s.number))
	n := s.w.n
	if err := s.w.finish(path); err != nil {
		return err
	}
	s.w = nil
	sum, _, err := hashFile(path)
	if err != nil {
		return err
	}
	if err := s.log.sync(); err != nil {
		return err
	}
	m.Shards = append(m.Shards, Shard{filepath.Base(path), s.split, n, sum, p, s.counts})
	s.number++
	s.want = o.length(s)
	return m.save(o.OutDir)
}

// shardName: held-out shards count from 0, training shards from 1, as in llm.c's data sets; number 0 of the training
// stream holds the tokens that are held out of it.
func shardName(split string, number int) string {
	if number == 0 {
		split = "val"
	}
	return fmt.Sprintf("%s_%06d.bin", split, number)
}

// counts returns the counts of a stream at its last shard.
func (m *Manifest) counts(split string) (c counts) {
	for _, s := range m.Shards {
		if s.Stream == split {
			c = s.Counts
		}
	}
	return c
}

// statistics sums up all streams at their ends. log may be nil.
func (m *Manifest) statistics(log *hashLog) (*Statistics, error) {
	val, train := m.counts("val"), m.counts("train")
	s := &Statistics{Documents: val.Documents + train.Documents, Bytes: val.Bytes + train.Bytes, Tally: val.Tally,
		EmptyFiles: val.EmptyFiles + train.EmptyFiles}
	s.Tally.add(train.Tally)
	for _, shard := range m.Shards {
		s.Tokens += shard.Tokens
	}
	s.BytesPerToken = float64(s.Bytes) / float64(max(s.Tokens, 1))
	if log == nil {
		return s, nil
	}
	n, err := log.duplicates(hashesAtOnce)
	s.Duplicates = &n
	return s, err
}
