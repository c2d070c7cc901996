package hub

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/internal/userpath"
)

const snapshots = "snapshots"

var (
	hash   = regexp.MustCompile(`^[0-9a-f]{40}$`)
	digest = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
)

// IsCommit reports whether a revision is a whole commit, which always means the same files.
func IsCommit(revision string) bool { return hash.MatchString(revision) }

// File is a file of a repository at a commit.
type File struct {
	Path string // with slashes
	Size int64
	Blob string // names its content in the cache: the SHA-256 of a large file, the hash that Git gives a small one
	Git  string // the hash that Git gives it, or the pointer to it
}

// Large reports whether the content is in the storage of large files.
func (f File) Large() bool { return len(f.Blob) == 64 }

// Valid reports whether a file, as a server has sent it, has a hash and a size.
func (f File) Valid() bool { return digest.MatchString(f.Blob) && f.Size >= 0 }

// Local reports whether the path of a file, which a server has sent, may be used below a folder of this machine.
func (f File) Local() bool { return slashed(f.Path) }

// listing is a file with the files of a commit, in the format of huggingface_hub's trees/COMMIT.json. That program
// takes a listing for a promise that all files are there. So gpupipe, which downloads the files that it needs, has a
// folder of its own, and writes the other one for repositories that are whole.
type listing struct {
	Version int               `json:"format_version"`
	Files   map[string]listed `json:"files"`
}

type listed struct {
	Size   int64  `json:"size"`
	Git    string `json:"blob_id"`
	SHA256 string `json:"lfs_sha256,omitempty"`
	LFS    int64  `json:"lfs_size,omitempty"`
}

const (
	trees   = "trees"
	version = 1
)

// OwnFolder is the folder of a repository in the cache with what huggingface_hub does not know.
const OwnFolder = ".gpupipe"

// Listed returns the files of a commit, if the cache has their listing.
func (n Name) Listed(commit string) (files []File, ok bool) {
	for _, folder := range []string{OwnFolder, trees} {
		text, err := os.ReadFile(filepath.Join(n.Dir(), folder, commit+".json"))
		var l listing
		if err != nil || json.Unmarshal(text, &l) != nil || l.Version != version {
			continue
		}
		for path, f := range l.Files {
			files = append(files, File{path, cmp.Or(f.LFS, f.Size), cmp.Or(f.SHA256, f.Git), f.Git})
		}
		if slices.ContainsFunc(files, func(f File) bool { return !f.Valid() }) {
			files = nil
			continue
		}
		sortFiles(files)
		return files, true
	}
	return nil, false
}

func sortFiles(files []File) {
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
}

// WriteListing keeps the files of a commit in the cache. whole says that the snapshot has all of them.
func (n Name) WriteListing(commit string, files []File, whole bool) error {
	l := listing{version, map[string]listed{}}
	for _, f := range files {
		e := listed{Size: f.Size, Git: cmp.Or(f.Git, f.Blob)}
		if f.Large() {
			e.SHA256, e.LFS = f.Blob, f.Size
		}
		l.Files[f.Path] = e
	}
	folder := OwnFolder
	if whole {
		folder = trees
	}
	path := filepath.Join(n.Dir(), folder, commit+".json")
	if _, err := os.Stat(path); err == nil { // a commit always has the same files
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return jsonfile.Write(path, l, " ")
}

// In is the path of a file of a commit in the cache.
func (n Name) In(commit, path string) string {
	return filepath.Join(n.Dir(), snapshots, commit, filepath.FromSlash(path))
}

// Cached returns the files of a commit: the files in its listing or, if another program has downloaded the snapshot and
// left no listing, the files of the snapshot. A file whose name says that it is one part of several is refused if a
// part is missing.
func (n Name) Cached(commit string) ([]File, error) {
	if files, ok := n.Listed(commit); ok {
		return files, nil
	}
	root := n.In(commit, "")
	var files []File
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w: the download did not finish: %s", err, n.advice())
		}
		rel, err := filepath.Rel(root, path)
		files = append(files, File{Path: filepath.ToSlash(rel), Size: st.Size()})
		return err
	})
	if err != nil {
		return nil, err
	}
	return files, n.checkParts(files)
}

// partOf is the end of the name of a file that is one of several.
var partOf = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})(\D.*)?$`)

// checkParts refuses files of several some of which are missing.
func (n Name) checkParts(files []File) error {
	found := map[[3]string]int{}
	for _, f := range files {
		if m := partOf.FindStringSubmatch(f.Path); m != nil {
			found[[3]string{m[1], m[3], m[4]}]++
		}
	}
	for key, count := range found {
		if of := strings.TrimLeft(key[1], "0"); fmt.Sprint(count) != of {
			return fmt.Errorf("%s: %d of the %s files %s-*-of-%s%s are in the cache: %s", n.Text(), count, of, key[0], key[1], key[2], n.advice())
		}
	}
	return nil
}

// Commit returns the commit that the revision has in the cache.
func (n Name) Commit() (string, error) { return n.commit(n.Dir()) }

// inFolder returns a folder, or the snapshot of a folder of the cache.
func inFolder(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	base := filepath.Base(abs)
	for _, kind := range []string{"dataset", "space"} {
		if strings.HasPrefix(base, kind+"s--") && present(dir, snapshots) {
			return "", fmt.Errorf("%s: found a %s in the Hub's cache, expected a model", dir, kind)
		}
	}
	switch {
	case base == snapshots && strings.HasPrefix(filepath.Base(filepath.Dir(abs)), Models.prefix()):
		return Name{Revision: mainRevision}.snapshot(filepath.Dir(filepath.Clean(dir)))
	case strings.HasPrefix(base, Models.prefix()) || present(dir, snapshots):
		return Name{Revision: mainRevision}.snapshot(dir)
	}
	found, err := filepath.Glob(filepath.Join(userpath.Literal(dir), Models.prefix()+"*"))
	if err == nil && len(found) > 0 {
		return "", fmt.Errorf("%s: found the Hub's cache, expected a model: name one, such as %s", dir,
			strings.Join(found[:min(len(found), 5)], ", "))
	}
	return dir, err
}

// commit returns the snapshot of the revision in a repository's folder. If no revision has the name main, that is the
// only snapshot.
func (n Name) commit(dir string) (string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshots))
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || !present(dir, "")) {
		return "", err
	}
	var commits []string
	for _, e := range entries {
		commits = append(commits, e.Name())
	}
	commit := n.Revision
	if text, err := os.ReadFile(filepath.Join(dir, "refs", filepath.FromSlash(n.Revision))); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	switch {
	case slices.Contains(commits, commit):
		return commit, nil
	case len(commits) == 0:
		return "", fmt.Errorf("%s: a folder of the Hub's cache without a snapshot (refs/%s names %q): the download did not finish: %s",
			dir, n.Revision, commit, Advice(dir))
	case n.Revision != mainRevision:
		return "", fmt.Errorf("%s: a folder of the Hub's cache without the revision %s: found the snapshots %s", dir, n.Revision,
			strings.Join(commits, ", "))
	case len(commits) > 1:
		return "", fmt.Errorf("%s: a folder of the Hub's cache with %d snapshots and none of refs/main: name one, such as %s", dir,
			len(commits), filepath.Join(dir, snapshots, commits[0]))
	}
	return commits[0], nil
}

// snapshot returns the snapshot of the revision in a repository's folder, or the file in it that the name has.
func (n Name) snapshot(dir string) (string, error) {
	commit, err := n.commit(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, snapshots, commit, filepath.FromSlash(n.Path))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: not in the Hub's cache, which has %s of this model: %s", path,
			Contents(filepath.Join(dir, snapshots, commit)), Advice(dir))
	}
	return path, nil
}
