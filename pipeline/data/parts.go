package data

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/internal/hub"
)

// Stream says how much of the training text is read before training begins. A stream is dealt part by part: a part is
// consecutive files, in most cases one, that have at least minWindows windows together. Windows do not cross parts. The first
// pass takes the windows of each part, in an order of their own, after those of the part before; later passes are over all
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

// readPart reads files, from the first on, up to a part, and returns how many it has read. The part has no tokens if no file
// has.
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

// rest is what follows the first part of a stream. A goroutine reads it while the parts before are used.
type rest struct {
	begin  sync.Once
	run    func() // reads the parts
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned, or will not be called

	mu       sync.Mutex
	files    []string // of the stream
	read     int      // of them
	parts    []*Corpus
	found    Findings // in files behind the first part
	reported bool     // the findings were
	done     bool     // there will be no more parts
	err      error    // why, if not all files were read
	changed  chan struct{}
	arrivals Arrivals
}

func newRest(ctx context.Context, files []string, read int, o Options) *rest {
	ctx, cancel := context.WithCancel(ctx)
	r := &rest{cancel: cancel, ended: make(chan struct{}), files: files, read: read, done: read == len(files),
		changed: make(chan struct{}), arrivals: o.Arrivals}
	o.Progress = nil
	r.run = func() {
		defer close(r.ended)
		for at := read; at < len(files); {
			c, n, err := readPart(ctx, files[at:], o, &progress{})
			at += n
			if r.add(c, at, err); err != nil {
				return
			}
		}
	}
	return r
}

// start begins to read, once.
func (r *rest) start() { r.begin.Do(func() { go r.run() }) }

// add takes the next part, or the error of reading it.
func (r *rest) add(c *Corpus, read int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c != nil {
		r.found.join(c.found)
	}
	if c != nil && c.tokens() > 0 {
		r.parts = append(r.parts, c)
	}
	r.read, r.err = read, err
	r.done = err != nil || read == len(r.files)
	close(r.changed)
	r.changed = make(chan struct{})
}

// state returns the parts so far, whether that is all, a channel that is closed when more is known, and why not all are read.
func (r *rest) state() (parts []*Corpus, done bool, changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parts, r.done, r.changed, r.err
}

// waiting says which file is read or downloaded, and how many bytes or files are there.
func (r *rest) waiting() Waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := Waiting{Number: r.read + 1, Files: len(r.files), Done: int64(r.read), Total: int64(len(r.files))}
	if r.read < len(r.files) {
		w.File = filepath.Base(r.files[r.read])
	}
	if r.arrivals != nil {
		w.Done, w.Total = r.arrivals.Progress()
	}
	return w
}

// close ends reading and closes the parts.
func (r *rest) close() error {
	if r == nil {
		return nil
	}
	r.cancel()
	r.begin.Do(func() { close(r.ended) })
	<-r.ended
	var first error
	for _, c := range r.parts {
		if err := c.Close(); first == nil {
			first = err
		}
	}
	return first
}

// Files is how many files the corpus was read from so far, and how many it has. They differ for a stream.
func (c *Corpus) Files() (read, all int) {
	if c.rest == nil {
		return c.stats.Files, c.stats.Files
	}
	c.rest.mu.Lock()
	defer c.rest.mu.Unlock()
	return c.rest.read, len(c.rest.files)
}

// Late says what was found in the files of a stream behind its first part, once all are read; nil if it was said before.
func (c *Corpus) Late() []string {
	if c.rest == nil {
		return nil
	}
	c.rest.mu.Lock()
	defer c.rest.mu.Unlock()
	if !c.rest.done || c.rest.err != nil || c.rest.reported {
		return nil
	}
	c.rest.reported = true
	return c.rest.found.Notes()
}
