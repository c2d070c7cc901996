package client

import (
	"cmp"
	"context"
	"os"

	"github.com/gpupipe/gpupipe/internal/hub"
)

// arriving is how many files of a stream are downloaded at once: the next one must not wait for the last.
const arriving = 2

// Arrivals are files of data sets that are downloaded while others are used.
type Arrivals struct {
	client *Client
	cancel context.CancelFunc
	there  map[string]chan struct{} // by path in the cache; closed when the file is there
	ended  chan struct{}            // closed when err is set, and no more arrives
	err    error
}

// Stream fetches as Fetch does what the requests for data need, and returns their names with the commits. If streamed
// says so of the files, it returns when the first is there, and the others arrive in their order, until ctx ends: the
// cache has them under the commit, and under the revision once all are there, be it in a later run that names the
// commit. Close the arrivals; nil: all is there.
func (c *Client) Stream(ctx context.Context, requests []Request, streamed func(paths []string) bool) ([]string, *Arrivals, error) {
	sources, err := c.find(ctx, requests)
	if err != nil {
		return nil, nil, err
	}
	a := &Arrivals{client: c, there: map[string]chan struct{}{}, ended: make(chan struct{})}
	var files []wanted
	var paths []string
	for _, s := range sources {
		for _, w := range s.wanted() {
			path := w.In(w.commit, w.file.Path)
			if a.there[path] == nil { // two revisions may be one commit
				files, paths, a.there[path] = append(files, w), append(paths, path), make(chan struct{})
			}
		}
	}
	if len(files) == 0 || !streamed(paths) {
		return pinned(requests, sources), nil, c.fetch(ctx, sources)
	}
	if err := c.download(ctx, 1, files[:1], nil); err != nil {
		return nil, nil, err
	}
	for _, s := range sources {
		if err := s.announce(); err != nil {
			return nil, nil, err
		}
	}
	ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.ended)
		a.err = c.download(ctx, arriving, files, func(w wanted) { close(a.there[w.In(w.commit, w.file.Path)]) })
		for _, s := range sources {
			if a.err == nil {
				a.err = s.finish()
			}
		}
	}()
	return pinned(requests, sources), a, nil
}

// pinned are the names of requests with the commits of their sources, or of the cache.
func pinned(requests []Request, sources []*source) []string {
	names := make([]string, len(requests))
	for i, r := range requests {
		r.Name.Revision = cmp.Or(sources[sourceOf(sources, r.Name)].commit, r.Name.Revision)
		names[i] = hub.Pinned(r.Name.Text())
	}
	return names
}

// announce lists the files of a commit that are not there yet. Its revision is written when they are: it means them. A
// run that is stopped before goes on with the commit, so the cache notes the revision.
func (s *source) announce() error {
	if s.commit == "" { // of the cache
		return nil
	}
	if err := os.MkdirAll(s.In(s.commit, ""), 0o777); err != nil {
		return err
	}
	if err := s.WriteListing(s.commit, s.files, false); err != nil {
		return err
	}
	s.notePending()
	return nil
}

// Await waits until a file of the cache is there.
func (a *Arrivals) Await(ctx context.Context, path string) error {
	there, ok := a.there[path]
	if !ok {
		return nil
	}
	select {
	case <-there:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.ended:
	}
	select {
	case <-there: // both
		return nil
	default:
		return a.err
	}
}

// Progress returns how many bytes are there, of those that have been downloaded or will be.
func (a *Arrivals) Progress() (done, total int64) { return a.client.done.count() }

// Close ends the downloads. If all files are there, the cache has them under the revision, too.
func (a *Arrivals) Close() {
	if a == nil {
		return
	}
	defer a.cancel()
	for _, there := range a.there {
		select {
		case <-there:
		default:
			a.cancel()
		}
	}
	<-a.ended
}
