package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"sort"
	"time"
)

// Waiting is what a run waits for: a file of a stream that was not read yet.
type Waiting struct {
	File          string
	Number, Files int   // of the file, from 1 on, and of the stream
	Done, Total   int64 // of the bytes to download, or of the files to read
}

// ReadAhead begins to read what follows the first part of a stream, as far ahead of the batches as aheadTokens says.
// Tokens are kept in a temporary file of the folder, which no other process uses.
func (b *Batcher) ReadAhead(dir string) {
	if b.rest != nil {
		b.rest.reader.start(dir)
	}
}

// use says that the batch of a step is made.
func (b *Batcher) use(step int64) {
	if b.rest == nil {
		return
	}
	last := b.first(step) + int64(b.cfg.BatchSize) - 1
	b.rest.using(sort.Search(len(b.sources), func(i int) bool { return b.sources[i].before+b.sources[i].n > last }))
}

// Ready is how many steps, from 0 on, have text. Of a stream, that is what was read so far of its first pass. It takes
// new parts into the batcher, so that nothing else may use it meanwhile.
func (b *Batcher) Ready() (int64, error) {
	if b.rest == nil {
		return math.MaxInt64, nil
	}
	parts, _, _, _ := b.rest.state()
	for _, c := range parts[len(b.sources)-1:] {
		if _, err := b.add(c, c.spans[0]); err != nil {
			return 0, err
		}
	}
	if b.whole() {
		return math.MaxInt64, nil
	}
	return b.origin.batch + (b.n-b.origin.window)/int64(b.cfg.BatchSize), nil
}

// Await waits until a step is ready; of a stream, after ReadAhead. While it waits, each is called at once and every
// second. An error of it ends the wait.
func (b *Batcher) Await(ctx context.Context, step int64, each func(Waiting) error) error {
	return b.await(ctx, func(ready int64) bool { return step < ready }, each)
}

// AwaitPosition waits until the text before a position was read, for Resume, unless that refuses the position anyway.
func (b *Batcher) AwaitPosition(ctx context.Context, p Position, each func(Waiting) error) error {
	if !p.Stream {
		return nil
	}
	return b.await(ctx, func(int64) bool { return p.window() <= b.n }, each)
}

func (b *Batcher) await(ctx context.Context, enough func(ready int64) bool, each func(Waiting) error) error {
	ready, err := b.Ready()
	if err != nil || b.rest == nil || b.whole() || enough(ready) {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		sources := len(b.sources)
		b.rest.using(sources) // the next part
		_, _, changed, failed := b.rest.state()
		ready, err := b.Ready()
		switch {
		case err != nil || b.whole() || enough(ready):
			return err
		case failed != nil:
			return failed
		case len(b.sources) > sources:
			continue
		}
		if err := each(b.rest.waiting()); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// whole reports whether all parts of the stream are sources.
func (b *Batcher) whole() bool {
	parts, done, _, err := b.rest.state()
	return done && err == nil && len(b.sources) == len(parts)+1
}

// inParts is the window at a place of the first pass.
func (b *Batcher) inParts(at int64) int64 {
	s, k := b.find(at)
	if !b.cfg.Shuffle {
		return at
	}
	return s.before + int64(permute(uint64(k), uint64(s.n), b.cfg.Seed^mix(uint64(s.before)), 0))
}

// inStream returns the epoch of a place in the order, and the hash of the parts that have the windows before it. Both
// are the same whatever was read behind them.
func (b *Batcher) inStream(window int64) (epoch int64, hash string) {
	last := sort.Search(len(b.sources), func(i int) bool { return b.sources[i].before+b.sources[i].n >= window })
	if last == len(b.sources) {
		epoch, last = window/b.n, last-1
	}
	sum := sha256.New()
	for _, s := range b.sources[:last+1] {
		fmt.Fprintln(sum, s.corpus.Hash())
	}
	return epoch, "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
