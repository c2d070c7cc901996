package client

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/hub"
)

// pending is what the cache notes of a revision while a stream downloads the files of its commit.
type pending struct {
	Commit string   `json:"commit"`
	Before string   `json:"before,omitempty"` // the commit that the revision has in the cache until then
	Files  []string `json:"files"`            // those of the commit that the stream needs
}

// refPath is the file with the commit of a revision.
func (s *source) refPath(revision string) string {
	return filepath.Join(s.Dir(), "refs", filepath.FromSlash(revision))
}

// ref is the commit that a revision has in the cache, or "".
func (s *source) ref(revision string) string {
	text, err := os.ReadFile(s.refPath(revision))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// pendingPath is the file that notes a pending revision.
func (s *source) pendingPath(revision string) string {
	return filepath.Join(s.Dir(), hub.OwnFolder, "refs", filepath.FromSlash(revision))
}

// notePending notes the revision of a stream, which is written when its files are there. Without a note the stream is
// as good: only a run that goes on with its commit leaves the revision as it was.
func (s *source) notePending() {
	before := s.ref(s.Revision)
	switch s.commit {
	case s.Revision:
		return
	case before:
		_ = os.Remove(s.pendingPath(s.Revision)) // of an earlier stream; there may be none
		return
	}
	text, err := json.Marshal(pending{Commit: s.commit, Before: before, Files: hub.Paths(s.need)})
	if err != nil {
		panic(err) // of strings
	}
	_ = write(s.pendingPath(s.Revision), text) // the note of branch a keeps that of branch a/b from being written
}

// writeRefs writes the commit of the source's revision. If that is the commit itself, it writes the revisions that
// streams have left pending, if their files are there.
func (s *source) writeRefs() error {
	if s.Revision != s.commit {
		return s.writeRef(s.Revision)
	}
	root := s.pendingPath("")
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // there is none, or another process has written it
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		var p pending
		revision := filepath.ToSlash(rel)
		text, err := os.ReadFile(path)
		switch {
		case err != nil || json.Unmarshal(text, &p) != nil || p.Commit != s.commit:
			return nil
		case s.ref(revision) != p.Before: // a later download has given it another commit
			_ = os.Remove(path)
			return nil
		case slices.ContainsFunc(s.files, func(f hub.File) bool { return slices.Contains(p.Files, f.Path) && !s.has(s.commit, f) }):
			return nil
		}
		return s.writeRef(revision)
	})
}

// writeRef gives a revision the commit of the source. It is pending no longer.
func (s *source) writeRef(revision string) error {
	if s.ref(revision) != s.commit {
		if err := write(s.refPath(revision), []byte(s.commit)); err != nil {
			return err
		}
	}
	_ = os.Remove(s.pendingPath(revision)) // there may be none
	return nil
}

// write replaces a file, and makes its folder.
func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return atomicfile.WriteBytes(path, text)
}
