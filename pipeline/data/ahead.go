package data

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
)

// aheadTokens is how many tokens are read ahead of the part in use, to the end of the part that has the last of them.
const aheadTokens = 1 << 24

// rest is what follows the first part of a stream. A goroutine reads it while the parts before are used. It waits when
// the parts behind the one in use have enough tokens. Tokens that were read lie in a temporary file: later passes are
// over all.
type rest struct {
	files    []string // of the stream
	ahead    int64    // see aheadTokens
	arrivals Arrivals
	reader   aheadReader
	spill    spill

	mu      sync.Mutex
	read    int // files
	parts   []*Corpus
	use     int           // the part in use; 0 is the first of the stream, which is not among parts
	found   Findings      // in files behind the first part that Late has not returned
	counted bool          // it has said how many tokens there are
	done    bool          // there will be no more parts
	err     error         // why, if not all files were read
	changed chan struct{} // closed when something of these has changed
}

func newRest(ctx context.Context, files []string, read int, o Options) *rest {
	ctx, cancel := context.WithCancel(ctx)
	r := &rest{files: files, ahead: aheadTokens, arrivals: o.Arrivals, read: read, done: read == len(files), changed: make(chan struct{})}
	o.Progress = nil
	r.reader = aheadReader{cancel: cancel, ended: make(chan struct{}), run: func(dir string) {
		r.spill.dir = dir
		for at := read; at < len(files); {
			var c *Corpus
			n, err := 0, r.awaitUse(ctx)
			if err == nil {
				c, n, err = readPart(ctx, files[at:], o, &progress{})
			}
			if err == nil {
				err = r.spill.take(c)
			}
			at += n
			if r.add(c, at, err); err != nil {
				return
			}
		}
	}}
	return r
}

// aheadReader is a goroutine that reads, with a temporary file in a folder.
type aheadReader struct {
	begin  sync.Once
	run    func(dir string)
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned, or will not be called
}

// start begins to read, once.
func (r *aheadReader) start(dir string) {
	r.begin.Do(func() {
		go func() {
			defer close(r.ended)
			r.run(dir)
		}()
	})
}

// stop ends reading, or keeps it from beginning.
func (r *aheadReader) stop() {
	r.cancel()
	r.begin.Do(func() { close(r.ended) })
	<-r.ended
}

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
	r.wake()
}

// wake tells those who wait that something has changed.
func (r *rest) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// using says that a part is in use, or waited for.
func (r *rest) using(part int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if part > r.use {
		r.use = part
		r.wake()
	}
}

// awaitUse waits while enough is read ahead.
func (r *rest) awaitUse(ctx context.Context) error {
	for {
		r.mu.Lock()
		n := int64(0)
		for _, c := range r.parts[min(r.use, len(r.parts)):] {
			n += c.tokens()
		}
		changed := r.changed
		r.mu.Unlock()
		if n < r.ahead {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// state returns the parts so far, whether that is all, a channel that is closed when more is known, and why not all are
// read.
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
	r.reader.stop()
	var errs []error
	for _, c := range r.parts {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, r.spill.close())...)
}
