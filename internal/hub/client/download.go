package client

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/hub"
)

const (
	workers    = 8
	incomplete = ".incomplete" // ends the name of a blob that is being downloaded
	lockPause  = 100 * time.Millisecond
)

// blob is the path of a file's content in the cache.
func (s *source) blob(f hub.File) string { return filepath.Join(s.Dir(), "blobs", f.Blob) }

// has reports whether the snapshot has a file in its size.
func (s *source) has(commit string, f hub.File) bool { return has(s.Name, commit, f) }

func has(n hub.Name, commit string, f hub.File) bool {
	return f.Local() && isWhole(n.In(commit, f.Path), f.Size)
}

func isWhole(path string, size int64) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Size() == size
}

// wanted is a file of a source.
type wanted struct {
	*source
	file hub.File
}

// wanted are the files that requests need.
func (s *source) wanted() (files []wanted) {
	for _, f := range s.need {
		files = append(files, wanted{s, f})
	}
	return files
}

// download brings files into the cache, some at once, and calls arrived with each. The first error ends the others.
func (c *Client) download(ctx context.Context, atOnce int, files []wanted, arrived func(wanted)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var missing []wanted
	for _, w := range files {
		if !w.has(w.commit, w.file) {
			missing = append(missing, w)
			c.done.expect(w.file.Size)
		} else if arrived != nil {
			arrived(w)
		}
	}
	queue := make(chan wanted)
	var wg sync.WaitGroup
	for range min(atOnce, len(missing)) {
		wg.Go(func() {
			for w := range queue {
				if err := c.file(ctx, w.source, w.file); err != nil {
					cancel(c.explain(w.Name, fmt.Errorf("%s: %w", w.file.Path, err)))
				} else if arrived != nil {
					arrived(w)
				}
			}
		})
	}
	for _, w := range missing {
		select {
		case queue <- w:
		case <-ctx.Done():
		}
	}
	close(queue)
	wg.Wait()
	return context.Cause(ctx)
}

// file brings a file into the cache, while no other process does.
func (c *Client) file(ctx context.Context, s *source, f hub.File) error {
	blob := s.blob(f)
	lock := filepath.Join(hub.Cache(), ".locks", s.Folder(), f.Blob+".lock")
	for _, path := range []string{blob, lock} {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
	}
	l := flock.New(lock, flock.SetPermissions(0o666))
	defer l.Close()
	if _, err := l.TryLockContext(ctx, lockPause); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if errors.As(err, new(*os.PathError)) {
		return err
	} // else the file system has no locks: writers of the same bytes at the same places do not harm each other
	if s.has(s.commit, f) { // another process has brought it, and may be reading it
		c.done.add(f.Size)
		return nil
	}
	if isWhole(blob, f.Size) {
		c.done.add(f.Size)
	} else if err := c.content(ctx, s, f, blob); err != nil {
		return err
	}
	return link(blob, s.In(s.commit, f.Path))
}

// content downloads a blob, going on where an earlier download has stopped. A content with another hash is downloaded
// once more; the second one is an error.
func (c *Client) content(ctx context.Context, s *source, f hub.File, blob string) error {
	part, err := os.OpenFile(blob+incomplete, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer part.Close()
	p := &partial{File: f, file: part, meter: &c.done}
	for again := false; ; again = true {
		if err := p.begin(ctx); err != nil {
			return err
		}
		if err := c.persist(ctx, maxAttempts, func() (bool, error) { return c.rest(ctx, s, p) }); err != nil {
			return err
		}
		if p.sum() == f.Blob && p.at == f.Size {
			break
		}
		found := fmt.Errorf("%d bytes with the hash %s arrived, expected %d bytes with %s", p.at, p.sum(), f.Size, f.Blob)
		if err := p.reset(); err != nil {
			return err
		}
		if again {
			os.Remove(blob + incomplete)
			return fmt.Errorf("%w, twice: the file on the Hub is damaged, or something on the way changes it", found)
		}
	}
	if err := part.Sync(); err != nil {
		return err
	}
	if err := part.Close(); err != nil {
		return err
	}
	if err := atomicfile.Rename(blob+incomplete, blob); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(blob))
}

// contentRange is the header of an answer with the rest of a file.
var contentRange = regexp.MustCompile(`^bytes (\d+)-\d+/(\d+)$`)

// rest asks for the bytes that a partial file lacks, once.
func (c *Client) rest(ctx context.Context, s *source, p *partial) (moved bool, err error) {
	if p.at == p.Size {
		return false, nil
	}
	ctx, watch := watched(ctx, c.options.Idle)
	defer watch.stop()
	r := request{method: http.MethodGet, url: c.resolved(s, p.File), header: map[string]string{"Accept-Encoding": "identity"}}
	if p.at > 0 {
		r.header["Range"] = fmt.Sprintf("bytes=%d-", p.at)
	}
	res, err := c.send(ctx, r)
	var refused *status
	if errors.As(err, &refused) && refused.code == http.StatusRequestedRangeNotSatisfiable {
		return false, errors.Join(p.reset(), network{err})
	}
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusPartialContent && p.at > 0 { // the server sends all of it
		if err := p.reset(); err != nil {
			return false, err
		}
	} else if m := contentRange.FindStringSubmatch(res.Header.Get("Content-Range")); res.StatusCode == http.StatusPartialContent &&
		(m == nil || m[1] != strconv.FormatInt(p.at, 10) || m[2] != strconv.FormatInt(p.Size, 10)) {
		return false, network{fmt.Errorf("found the bytes %q, expected those from %d on of %d", res.Header.Get("Content-Range"), p.at, p.Size)}
	}
	_, err = io.Copy(p, io.LimitReader(watch.reader(res.Body), p.Size-p.at+1)) // a byte more: the file is longer
	var disk *os.PathError
	switch {
	case errors.As(err, &disk):
		return false, err
	case err == nil && p.at < p.Size:
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return p.advanced(), unreachable(ctx, err)
	}
	return true, nil
}

// partial is a file that is being downloaded.
type partial struct {
	hub.File
	file  *os.File
	meter *meter
	hash  hash.Hash
	at    int64 // bytes that are there
	most  int64 // that have been there
}

// advanced reports whether there are more bytes than ever before: a server that begins again each time does not count.
func (p *partial) advanced() bool {
	more := p.at > p.most
	p.most = max(p.most, p.at)
	return more
}

// begin hashes what an earlier download has left.
func (p *partial) begin(ctx context.Context) error {
	st, err := p.file.Stat()
	if err != nil {
		return err
	}
	if st.Size() > p.Size {
		return p.reset()
	}
	p.fresh()
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(p.hash, p.file)
	p.at, p.most = n, n
	p.meter.add(n)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// fresh begins the hash: the SHA-256 of a large file, or Git's of a small one.
func (p *partial) fresh() {
	if p.hash = sha256.New(); !p.Large() {
		p.hash = sha1.New()
		fmt.Fprintf(p.hash, "blob %d\x00", p.Size)
	}
}

// reset drops the bytes so far.
func (p *partial) reset() error {
	p.meter.add(-p.at)
	p.at = 0
	p.fresh()
	return p.file.Truncate(0)
}

func (p *partial) Write(b []byte) (int, error) {
	n, err := p.file.WriteAt(b, p.at)
	p.hash.Write(b[:n])
	p.at += int64(n)
	p.meter.add(int64(n))
	return n, err
}

func (p *partial) sum() string { return hex.EncodeToString(p.hash.Sum(nil)) }

// link makes a snapshot's file a link to a blob; where there are no links, a copy.
func link(blob, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	to, err := filepath.Rel(filepath.Dir(path), blob)
	if err != nil {
		return err
	}
	if at, err := os.Readlink(path); err == nil && at == to {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, path); err == nil || errors.Is(err, os.ErrExist) {
		return nil
	}
	return copyTo(blob, path)
}

// copyTo copies a blob into a snapshot, which has the whole of it or nothing: a process that is killed leaves what it
// has copied beside the blob.
func copyTo(blob, path string) error {
	from, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer from.Close()
	return atomicfile.WriteAside(filepath.Dir(blob), path, func(to io.Writer) error {
		_, err := io.Copy(to, from)
		return err
	})
}
