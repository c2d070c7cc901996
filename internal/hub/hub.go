// Package hub knows the names of the Hugging Face Hub and the cache in which huggingface_hub keeps what it downloads:
// models--ORG--NAME or datasets--ORG--NAME with refs/REVISION, which holds a commit, blobs, which are named by their
// hashes, and snapshots/COMMIT, which holds the files as links to blobs. It also chooses the files of a repository that
// a use needs.
//
// This package uses no network: package client downloads into the cache, and uploads. Locate and Files
// read the cache alone.
package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/userpath"
)

// Locate returns the file or folder that a path names. A folder of the cache stands for its snapshot. A path at which
// nothing is may be the name of a model in the cache: ORG/NAME, with @REVISION or without, hf:ORG/NAME, or an address
// at huggingface.co. The error says what to do; fs.ErrNotExist is in it if the path is not the name of a model.
func Locate(path string) (string, error) {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		return inFolder(path)
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist) && !isAddress(path):
		return "", err
	}
	if to, err := os.Readlink(path); err == nil {
		return "", fmt.Errorf("%s: a symbolic link to %s, which is not there", path, to)
	}
	n, ok, err := Parse(path)
	if err == nil && ok && n.Kind != Models {
		err = fmt.Errorf("%s: found a data set of the Hub, expected a model", path)
	}
	if err != nil || !ok {
		return "", cmp.Or(err, missing(path))
	}
	if _, err := os.Stat(n.Dir()); err != nil {
		return "", n.absent(path)
	}
	return n.snapshot(n.Dir())
}

func missing(path string) error {
	return fmt.Errorf("%s: no such file or folder%w", path, silent{fs.ErrNotExist})
}

// silent is an error without a text.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// Files returns the files in the cache that the name of a data set means, in the order of their names.
func Files(name string) ([]string, error) {
	n, commit, files, err := dataIn(name)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if _, err := os.Stat(n.In(commit, f.Path)); err != nil {
			return nil, fmt.Errorf("%s: %s is not in the cache %s: %s", name, f.Path, Cache(), n.advice())
		}
	}
	return n.paths(commit, files), nil
}

// Places returns where the cache has, or will have, the files of Files.
func Places(name string) ([]string, error) {
	n, commit, files, err := dataIn(name)
	return n.paths(commit, files), err
}

func (n Name) paths(commit string, files []File) (paths []string) {
	for _, f := range files {
		paths = append(paths, n.In(commit, f.Path))
	}
	return paths
}

// dataIn returns the files that the name of a data set means at its commit in the cache.
func dataIn(name string) (n Name, commit string, files []File, err error) {
	n, ok, err := Parse(name)
	switch {
	case err != nil || !ok:
		return n, "", nil, cmp.Or(err, missing(name))
	case n.Kind != DataSets:
		return n, "", nil, fmt.Errorf("%s: found a model of the Hub, expected a data set: hf:datasets/org/name", name)
	}
	commit, err = n.commit(n.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		err = n.absent(name)
	}
	if err == nil {
		files, err = n.Cached(commit)
	}
	if err != nil {
		return n, "", nil, err
	}
	files, err = n.Select(ForData, files, func(f File) ([]byte, error) { return os.ReadFile(n.In(commit, f.Path)) })
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return n, commit, files, err
}

// OneFile returns the path of the file that a name of the Hub means, and any other path as it is.
func OneFile(name string) (string, error) {
	if !IsAddress(name) {
		return name, nil
	}
	files, err := Files(name)
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("%s: found %d files, expected one", name, len(files))
	}
	if err != nil {
		return "", err
	}
	return files[0], nil
}

// IsAddress reports whether a text is the name of a repository of the Hub, and no path: hf:ORG/NAME, or an address at
// huggingface.co.
func IsAddress(text string) bool { return hfScheme.MatchString(text) || address.MatchString(text) }

// IsName reports whether a path at which nothing is names a repository of the Hub: by an address, or by a name in the
// cache.
func IsName(path string) bool {
	if isAddress(path) {
		return true
	}
	n, ok, err := Parse(path)
	if err != nil || !ok {
		return false
	}
	_, err = os.Stat(n.Dir())
	return err == nil
}

// NameOf is the name of the model or data set whose snapshot a path leads into, as ORG/NAME. It is empty for other
// paths.
func NameOf(path string) string {
	for _, part := range strings.Split(filepath.ToSlash(path), "/") {
		for _, kind := range []Kind{Models, DataSets} {
			if name, ok := strings.CutPrefix(part, kind.prefix()); ok {
				return strings.Replace(name, "--", "/", 1)
			}
		}
	}
	return ""
}

// Pinned returns a name of the Hub with the commit that its revision has in the cache, so that it means the same files
// later. A name that is not in the cache, and any other text, is returned as it is.
func Pinned(text string) string {
	if !IsAddress(text) {
		return text
	}
	n, ok, err := Parse(text)
	if err != nil || !ok {
		return text
	}
	commit, err := n.commit(n.Dir())
	if err != nil {
		return text
	}
	n.Revision = commit
	return n.Text()
}

// Commits are the commits that a run has recorded of names of the Hub, by the names without a revision: a run has one
// commit of a repository, whatever branch or tag named it. A set of runs may compare revisions: it has Pins.
type Commits map[string]string

// Record adds the commit of a name. A name with two commits has none. Other texts have none, either.
func (c Commits) Record(name string) {
	n, ok, err := Parse(name)
	if err != nil || !ok || !IsCommit(n.Revision) {
		return
	}
	if kept, ok := c[n.withoutRevision()]; ok && kept != n.Revision {
		n.Revision = ""
	}
	c[n.withoutRevision()] = n.Revision
}

// Keep returns a name with its commit in place of a branch or tag. A name without one, and any other text, stay as they
// are.
func (c Commits) Keep(text string) string { return c.keep(text, false) }

// KeepNewest is Keep of names without a revision: others stay as they are.
func (c Commits) KeepNewest(text string) string { return c.keep(text, true) }

func (c Commits) keep(text string, newest bool) string {
	n, ok, err := Parse(text)
	if !ok || err != nil || !IsAddress(text) || newest && n.Revised() {
		return text
	}
	if kept := c.KeepOf(n); kept != n {
		return kept.Text()
	}
	return text
}

// KeepOf is Keep of a name.
func (c Commits) KeepOf(n Name) Name {
	if commit := c[n.withoutRevision()]; commit != "" && !IsCommit(n.Revision) {
		n.Revision = commit
	}
	return n
}

// Pins are the commits of names of the Hub as they are given, by Name.Text: each revision of a repository has its own.
type Pins map[string]string

// Pin returns a name with its commit: the one that it has had, or else the one in the cache, which it has from now on.
// A name that is not in the cache, and any other text, is returned as it is.
func (p Pins) Pin(text string) string {
	n, ok, err := Parse(text)
	if !ok || err != nil || !IsAddress(text) || IsCommit(n.Revision) {
		return text
	}
	if p[n.Text()] == "" {
		commit, err := n.commit(n.Dir())
		if err != nil {
			return text
		}
		p[n.Text()] = commit
	}
	return p.Of(n).Text()
}

// Of returns a name with the commit that it has had, if it has.
func (p Pins) Of(n Name) Name {
	if commit := p[n.Text()]; commit != "" {
		n.Revision = commit
	}
	return n
}

// Revised reports whether the name has a revision of its own.
func (n Name) Revised() bool { return n.Revision != "" && n.Revision != mainRevision }

// withoutRevision is the name of the newest commit.
func (n Name) withoutRevision() string {
	n.Revision = ""
	return n.Text()
}

// PinnedPath returns the name of a path in a snapshot of the cache, with its commit; "" for other paths.
func PinnedPath(path string) string {
	rel, err := filepath.Rel(Cache(), path)
	parts := strings.SplitN(filepath.ToSlash(rel), "/", 4)
	if err != nil || len(parts) < 3 || parts[1] != snapshots {
		return ""
	}
	id, ok := strings.CutPrefix(parts[0], Models.prefix())
	if !ok {
		return ""
	}
	n := Name{Kind: Models, ID: strings.Replace(id, "--", "/", 1), Revision: parts[2]}
	if len(parts) == 4 {
		n.Path = parts[3]
	}
	return n.Text()
}

// Advice says how to download the model whose snapshot a path leads into, or the model at the path.
func Advice(path string) string {
	if name := NameOf(path); name != "" {
		return Name{ID: name}.advice()
	}
	return "download the whole model"
}

// Contents lists the files and folders in a folder, in words.
func Contents(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return "nothing"
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return inWords(names)
}

// inWords lists a few names.
func inWords(names []string) string { return someOf(names, 6) }

// someOf lists up to a number of names.
func someOf(names []string, most int) string {
	list := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// absent is the error of a repository that is not in the cache.
func (n Name) absent(path string) error {
	switch {
	case n.explicit:
		return fmt.Errorf("%s: the %s %s is not in the cache %s: %s", path, n.Kind, n.ID, Cache(), n.advice())
	case !strings.Contains(n.ID, "/") || isGGUF(n.ID):
		return missing(path)
	}
	return fmt.Errorf("%s: no such file or folder. If it is a name on the Hugging Face Hub, write %s, which is downloaded", path, n.Text())
}

// DataHint says how a path at which nothing is would be written if it named a data set; "": it looks like a file's.
func DataHint(path string) string {
	n, ok, err := Parse("hf:datasets/" + strings.TrimPrefix(path, "datasets/"))
	first, _, _ := strings.Cut(path, "/") // such as ./datasets
	isFile := slices.ContainsFunc(endings(path), func(e string) bool { return kindOfEnding(e) != "" })
	if err != nil || !ok || !strings.Contains(n.ID, "/") || isFile || present(".", first) {
		return ""
	}
	return fmt.Sprintf(". If it is a data set of the Hugging Face Hub, write %s, which is downloaded", n.Text())
}

// advice says how to download the repository.
func (n Name) advice() string {
	command := fmt.Sprintf("\"gpupipe fetch %s\" downloads what is missing", n.Text())
	if Offline() {
		command += ", without HF_HUB_OFFLINE, which forbids it now"
	}
	return command
}

// Offline reports whether the environment forbids downloads.
func Offline() bool {
	return IsTrue(cmp.Or(os.Getenv("HF_HUB_OFFLINE"), os.Getenv("TRANSFORMERS_OFFLINE")))
}

// IsTrue reports whether the value of a variable of the environment is one that huggingface_hub takes for true.
func IsTrue(value string) bool {
	switch strings.ToUpper(value) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// Home is the folder of the Hub's tools: the cache and the token are there unless the environment names others.
func Home() string {
	home, _ := os.UserHomeDir() // without one the relative path is not there either
	local := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache"))
	return expanded(cmp.Or(os.Getenv("HF_HOME"), filepath.Join(local, "huggingface")))
}

// Cache is the folder in which huggingface_hub keeps downloads.
func Cache() string {
	return expanded(cmp.Or(os.Getenv("HF_HUB_CACHE"), os.Getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(Home(), "hub")))
}

// TokenPath is the file in which hf auth login keeps the token.
func TokenPath() string {
	return expanded(cmp.Or(os.Getenv("HF_TOKEN_PATH"), filepath.Join(Home(), "token")))
}

// expanded is a path with ~ and variables expanded, as far as that is possible.
func expanded(path string) string {
	if used, err := userpath.Expand(path); err == nil {
		return used
	}
	return path
}

// slashed reports whether a path of a repository is one that may be used below a folder of this machine.
func slashed(p string) bool {
	return fs.ValidPath(p) && p != "." && filepath.IsLocal(filepath.FromSlash(p)) && !strings.Contains(p, "\x00")
}
