package data

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/internal/hub"
)

// Stream says how much of the training text is read before training begins. A stream is dealt part by part: a part is
// consecutive files, in most cases one, that have at least minWindows windows together. Windows do not cross parts. The
// first pass takes the windows of one part after the other, each in an order of its own; later passes are over all
// windows. So batches are a function of the files, the seed and the step, whenever the files arrive.
type Stream int

// How much is read.
const (
	StreamNone  Stream = iota // all files
	StreamHub                 // the first part, if the files are of the Hub, several, and all of them Parquet; else all files
	StreamParts               // the first part
)

var streamNames = [...]string{"false", "auto", "true"}

func (s Stream) String() string { return streamNames[s] }

// StreamOf is the value with a name.
func StreamOf(name string) Stream { return Stream(slices.Index(streamNames[:], name)) }

// Arrivals are files that are downloaded while others are used.
type Arrivals interface {
	Await(ctx context.Context, path string) error // until a file is there
	Progress() (done, total int64)                // bytes of all files
}

// Streams reports whether the files that some names stand for are a stream.
func (s Stream) Streams(names, files []string) bool {
	local := func(name string) bool { return !hub.IsAddress(name) }
	other := func(path string) bool {
		f, err := formatOf(path)
		return err != nil || f.kind != kindParquet
	}
	return s == StreamParts || s == StreamHub && !slices.ContainsFunc(names, local) && len(files) > 1 && !slices.ContainsFunc(files, other)
}

// minWindows is how many windows a part has at least: one to learn from, and one to hold out.
const minWindows = 2

// readPart reads files, from the first on, up to a part, and returns how many it has read. The part has no tokens if no
// file has.
func readPart(ctx context.Context, files []string, o Options, p *progress) (c *Corpus, read int, err error) {
	c = &Corpus{vocab: o.Vocab}
	for ; read < len(files) && c.tokens() <= minWindows*int64(o.SeqLen); read++ {
		if err := o.readArrived(ctx, c, files[read], p); err != nil {
			c.Close()
			return nil, 0, err
		}
	}
	c.stats.Files = read
	if c.spans = []span{{to: c.tokens()}}; c.tokens() == 0 {
		return c, read, nil
	}
	if err := c.seal(); err != nil {
		c.Close()
		return nil, 0, err
	}
	return c, read, nil
}

// readArrived waits for a file, and reads it.
func (o Options) readArrived(ctx context.Context, c *Corpus, path string, p *progress) error {
	if o.Arrivals != nil {
		if err := o.Arrivals.Await(ctx, path); err != nil {
			return err
		}
	}
	if err := checkContent(path); err != nil {
		return err
	}
	if err := p.expect(path); err != nil {
		return err
	}
	return c.addFile(ctx, path, o, p)
}

// loadStream reads the first part of a stream.
func loadStream(ctx context.Context, files []string, o Options, p *progress) (*Corpus, error) {
	c, read, err := readPart(ctx, files, o, p)
	if err != nil {
		return nil, err
	}
	if c.tokens() == 0 {
		return nil, c.found.noDocument()
	}
	c.streamed, c.rest = true, newRest(ctx, files, read, o)
	return c, nil
}

// Files is how many files the corpus was read from, of all. They differ for a stream, of which it is the first part.
func (c *Corpus) Files() (read, all int) {
	if c.rest == nil {
		return c.stats.Files, c.stats.Files
	}
	return c.stats.Files, len(c.rest.files)
}

// Late returns notes about the files of a stream behind its first part: once all are read, or at the end of a run,
// about those that were read. It returns each note once.
func (c *Corpus) Late(end bool) []string {
	r := c.rest
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := r.done && r.err == nil
	if !whole && !end {
		return nil
	}
	found := r.found
	r.found = Findings{}
	if found.Documents += c.found.Documents; c.found.WithoutEnd && c.found.Documents > 1 { // that was said
		found.WithoutEnd = false
	}
	notes := found.Notes()
	if whole && !r.counted && len(r.parts) > 0 {
		n := c.Len()
		for _, part := range r.parts {
			n += part.Len()
		}
		notes = append(notes, fmt.Sprintf("all %d files are read: %d tokens", len(r.files), n))
	}
	r.counted = r.counted || whole
	return notes
}
