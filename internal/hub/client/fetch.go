package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/units"
)

// Request is a name and what it is used for.
type Request struct {
	Name hub.Name
	Need hub.Need
}

// source is a repository at a revision, with the files that requests need of it.
type source struct {
	hub.Name
	commit   string
	files    []hub.File // all of the commit
	need     []hub.File
	optional []string // files that a use looks for, be they there or not
	failed   error    // the Hub's answer, while the cache has what was needed
}

// Fetch downloads what the requests need and the cache lacks. If the Hub cannot be reached, or refuses, and the cache
// has all that a request needs, a note says so and the files of the cache are used.
func (c *Client) Fetch(ctx context.Context, requests []Request) error {
	sources, err := c.find(ctx, requests)
	if err != nil {
		return err
	}
	return c.fetch(ctx, sources)
}

// fetch downloads all that sources need.
func (c *Client) fetch(ctx context.Context, sources []*source) error {
	for _, s := range sources {
		if err := c.download(ctx, workers, s.wanted(), nil); err != nil {
			return err
		}
		if err := s.finish(); err != nil {
			return err
		}
	}
	return nil
}

// find returns the sources of requests with the files that they need, for which the disk has room.
func (c *Client) find(ctx context.Context, requests []Request) (sources []*source, err error) {
	for _, r := range requests {
		at := sourceOf(sources, r.Name)
		if at < 0 {
			at, sources = len(sources), append(sources, &source{Name: r.Name})
		}
		s := sources[at]
		if err := c.resolve(ctx, s, r); err != nil {
			return nil, err
		}
	}
	return sources, c.checkDisk(sources)
}

// sourceOf is the place of a name's source, or -1.
func sourceOf(sources []*source, n hub.Name) int {
	return slices.IndexFunc(sources, func(s *source) bool { return s.Kind == n.Kind && s.ID == n.ID && s.Revision == n.Revision })
}

// resolve adds the files that a request needs to its source. If the Hub fails and the cache has them, there are none to
// add.
func (c *Client) resolve(ctx context.Context, s *source, r Request) error {
	if s.commit == "" {
		cached := inCache(r)
		if cached && s.failed != nil {
			return nil
		}
		if cached && c.down {
			s.failed = errDown
			c.options.Note("using what is in the cache of %s, too", r.Name.Text())
			return nil
		}
		s.failed = c.list(ctx, s, cached)
		c.down = mayRetry(s.failed)
		if s.failed != nil {
			reason := c.explain(s.Name, s.failed)
			if ctx.Err() != nil || c.isRevision(s.failed) || !cached {
				return reason
			}
			c.options.Note("%v; using what is in the cache of %s", reason, r.Name.Text())
			return nil
		}
	}
	var failed error
	chosen, err := r.Name.Select(r.Need, s.files, func(f hub.File) ([]byte, error) {
		if failed = c.download(ctx, 1, []wanted{{s, f}}, nil); failed != nil {
			return nil, failed
		}
		return os.ReadFile(s.In(s.commit, f.Path))
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("%s: %w", r.Name.Text(), err)
	}
	for _, f := range chosen {
		if r.Need == hub.ForData && c.options.CheckData != nil {
			if err := c.options.CheckData(f.Path); err != nil {
				return fmt.Errorf("%s: %w", r.Name.Text(), err)
			}
		}
		if !slices.Contains(s.need, f) {
			s.need = append(s.need, f)
		}
	}
	if r.Need < hub.ForData && !slices.ContainsFunc(chosen, func(f hub.File) bool { return f.Path == r.Name.Path }) {
		s.optional = append(s.optional, hub.Optional(r.Name.Path)...)
	}
	return nil
}

// isRevision reports whether the Hub says that a revision does not exist: the one in the cache was another.
func (c *Client) isRevision(err error) bool {
	var s *status
	return errors.As(err, &s) && s.kind == "RevisionNotFound"
}

// inCache reports whether the cache has all that a request needs.
func inCache(r Request) bool {
	commit, err := r.Name.Commit()
	if err != nil {
		return false
	}
	files, err := r.Name.Cached(commit)
	if err != nil {
		return false
	}
	chosen, err := r.Name.Select(r.Need, files, func(f hub.File) ([]byte, error) { return os.ReadFile(r.Name.In(commit, f.Path)) })
	return err == nil && !slices.ContainsFunc(chosen, func(f hub.File) bool { return !has(r.Name, commit, f) })
}

// list finds the commit of a source and its files, with one attempt a request if once is set. A commit that the cache
// has a list of needs no connection.
func (c *Client) list(ctx context.Context, s *source, once bool) error {
	commit := s.Revision
	if !hub.IsCommit(commit) {
		var answer struct {
			Commit string `json:"sha"`
		}
		if _, err := c.ask(ctx, request{method: http.MethodGet, url: c.api(s.Name, "revision", s.Revision), once: once}, &answer); err != nil {
			return err
		}
		if commit = answer.Commit; !hub.IsCommit(commit) {
			return fmt.Errorf("found the commit %q in an answer of the Hub, expected 40 digits", commit)
		}
	}
	files, ok := s.Listed(commit)
	for next := c.api(s.Name, "tree", commit) + "?recursive=true&expand=false"; !ok && next != ""; {
		var entries []struct {
			Type, Path, OID string
			Size            int64
			LFS             *struct {
				OID  string
				Size int64
			}
		}
		var err error
		if next, err = c.ask(ctx, request{method: http.MethodGet, url: next, once: once}, &entries); err != nil {
			return err
		}
		for _, e := range entries {
			f := hub.File{Path: e.Path, Size: e.Size, Blob: e.OID, Git: e.OID}
			if e.LFS != nil {
				f.Blob, f.Size = strings.TrimPrefix(e.LFS.OID, "sha256:"), e.LFS.Size
			}
			switch {
			case e.Type != "file":
			case !f.Valid():
				return fmt.Errorf("found the file %q with the hash %q and %d bytes in an answer of the Hub, expected a hash and a size", f.Path, f.Blob, f.Size)
			default:
				files = append(files, f)
			}
		}
	}
	s.commit, s.files = commit, files
	return nil
}

// checkDisk refuses downloads for which the disk has no room.
func (c *Client) checkDisk(sources []*source) error {
	var need int64
	for _, s := range sources {
		for _, f := range s.need {
			if s.has(s.commit, f) || isWhole(s.blob(f), f.Size) {
				continue
			}
			need += f.Size
			if st, err := os.Stat(s.blob(f) + incomplete); err == nil {
				need -= min(st.Size(), f.Size)
			}
		}
	}
	if need == 0 {
		return nil
	}
	dir := hub.Cache()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if free, known := c.options.Free(dir); known && free < need {
		return fmt.Errorf("%s: the download needs %s, and the disk of %s has %s free: make room, or set HF_HOME to a folder on another disk",
			sources[0].Text(), units.Bytes(need), dir, units.Bytes(free))
	}
	return nil
}

// finish writes what the cache keeps of a source: the commit of the revision, which files there are not, and the list
// of all files if all are there.
func (s *source) finish() error {
	if s.commit == "" { // of the cache
		return nil
	}
	if err := s.writeRefs(); err != nil {
		return err
	}
	for _, p := range s.optional {
		if !slices.ContainsFunc(s.files, func(f hub.File) bool { return f.Path == p }) {
			path := filepath.Join(s.Dir(), ".no_exist", s.commit, filepath.FromSlash(p))
			if err := touch(path); err != nil {
				return err
			}
		}
	}
	tag(hub.Cache())
	whole := !slices.ContainsFunc(s.files, func(f hub.File) bool { return !s.has(s.commit, f) })
	return s.WriteListing(s.commit, s.files, whole)
}

// touch makes an empty file.
func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// tag marks a folder as a cache for programs that make backups. A failure costs nothing.
func tag(dir string) {
	path := filepath.Join(dir, "CACHEDIR.TAG")
	if _, err := os.Stat(path); err != nil && os.MkdirAll(dir, 0o777) == nil {
		_ = os.WriteFile(path, []byte("Signature: 8a477f597d28d172789f06886806bc55\n# This file is a cache directory tag created by gpupipe.\n"+
			"# For information about cache directory tags, see:\n#	https://bford.info/cachedir/\n"), 0o666)
	}
}

// resolved is the address of a file's content.
func (c *Client) resolved(s *source, f hub.File) string {
	elements := strings.Split(f.Path, "/")
	for i, e := range elements {
		elements[i] = url.PathEscape(e)
	}
	return c.page(s.Name) + "/resolve/" + s.commit + "/" + strings.Join(elements, "/")
}
