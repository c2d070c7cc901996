// Package hub finds models of the Hugging Face Hub that are on this machine. It knows the names of models, and the layout of
// the cache in which huggingface_hub keeps what it downloads: models--ORG--NAME with refs/REVISION, which holds a commit,
// and snapshots/COMMIT, which holds the files. Nothing is downloaded.
package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/userpath"
)

const (
	models       = "models--" // begins the name of a model's folder in the cache
	snapshots    = "snapshots"
	mainRevision = "main" // the revision that a name without one means
)

// Locate returns the file or folder that a path names. A folder of the cache stands for its snapshot. A path at which nothing
// is may be the name of a model in the cache: ORG/NAME, with @REVISION or without, hf:ORG/NAME, or an address at
// huggingface.co. The error says what to do; fs.ErrNotExist is in it if the path is not the name of a model.
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
	n, ok, err := parse(path)
	if err != nil || !ok {
		return "", cmp.Or(err, missing(path))
	}
	dir := filepath.Join(cache(), n.folder())
	if _, err := os.Stat(dir); err != nil {
		return "", n.absent(path)
	}
	return n.snapshot(dir)
}

func missing(path string) error {
	return fmt.Errorf("%s: no such file or folder%w", path, silent{fs.ErrNotExist})
}

// silent is an error without a text.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// IsName reports whether a path at which nothing is names a model of the Hub: by an address, or by a name in the cache.
func IsName(path string) bool {
	if isAddress(path) {
		return true
	}
	n, ok, err := parse(path)
	if err != nil || !ok {
		return false
	}
	_, err = os.Stat(filepath.Join(cache(), n.folder()))
	return err == nil
}

// Name is the name of the model whose snapshot a path leads into, as ORG/NAME. It is empty for other paths.
func Name(path string) string {
	for _, part := range strings.Split(filepath.ToSlash(path), "/") {
		if name, ok := strings.CutPrefix(part, models); ok {
			return strings.Replace(name, "--", "/", 1)
		}
	}
	return ""
}

// Advice says how to download the model whose snapshot a path leads into, or the model at the path.
func Advice(path string) string {
	if name := Name(path); name != "" {
		return fmt.Sprintf("\"hf download %s\" downloads what is missing", name)
	}
	return "download the whole model"
}

// Contents lists the files and folders in a folder, in words.
func Contents(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return "nothing"
	}
	const most = 6
	var names []string
	for _, e := range entries[:min(len(entries), most)] {
		names = append(names, e.Name())
	}
	list := strings.Join(names, ", ")
	if more := len(entries) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// name is the name of a model.
type name struct {
	org, model string // org is "" for the oldest models
	revision   string
	file       string // a path in it
	explicit   bool   // the text is the name of a model and no path
}

func (n name) String() string { return strings.TrimPrefix(n.org+"/"+n.model, "/") }

// folder is the model's folder in the cache.
func (n name) folder() string { return models + strings.ReplaceAll(n.String(), "/", "--") }

// absent is the error of a model that is not in the cache.
func (n name) absent(path string) error {
	advice := fmt.Sprintf("gpupipe downloads nothing; \"hf download %s --local-dir %s\" does, and then name the folder %s", n, n.model,
		n.model)
	switch {
	case n.explicit:
		return fmt.Errorf("%s: the model %s is not in the cache %s: %s", path, n, cache(), advice)
	case n.org == "":
		return missing(path)
	}
	return fmt.Errorf("%s: no such file or folder. If it is a name on the Hugging Face Hub: %s", path, advice)
}

var (
	plainName = regexp.MustCompile(`^(?:([A-Za-z0-9][\w.-]*)/)?([A-Za-z0-9][\w.-]*?)(?:@([\w./-]+))?$`)
	hfScheme  = regexp.MustCompile(`^hf:(?://)?(?:models/)?(.*)$`)
	address   = regexp.MustCompile(`^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.*)$`)
	scheme    = regexp.MustCompile(`^[a-z][a-z0-9+.-]+://`)
	inAddress = regexp.MustCompile(`^((?:[^/]+/)?[^/]+)/(?:tree|blob|resolve|raw)/([^/]+)(?:/(.*))?$`)
)

// isAddress reports whether a text is no path: it begins as an address or a name of the Hub.
func isAddress(text string) bool {
	return hfScheme.MatchString(text) || address.MatchString(text) || scheme.MatchString(text)
}

// parse reads the name of a model; ok: the text may be one.
func parse(text string) (n name, ok bool, err error) {
	rest := text
	if m := hfScheme.FindStringSubmatch(text); m != nil {
		rest, n.explicit = m[1], true
		if parts := strings.SplitN(rest, "/", 3); len(parts) == 3 {
			rest, n.file = parts[0]+"/"+parts[1], parts[2]
		}
	} else if m := address.FindStringSubmatch(text); m != nil {
		rest, n.explicit = strings.TrimSuffix(cut(m[1], "?#"), "/"), true
		if in := inAddress.FindStringSubmatch(rest); in != nil {
			rest, n.revision, n.file = in[1], in[2], in[3]
		}
	} else if folder, ok := strings.CutPrefix(text, models); ok {
		rest, n.explicit = strings.Replace(folder, "--", "/", 1), true
	} else if scheme.MatchString(text) {
		return n, false, fmt.Errorf("%s: gpupipe downloads nothing: download the files, and name their folder", text)
	}
	for _, kind := range []string{"dataset", "space"} {
		if n.explicit && strings.HasPrefix(rest, kind+"s/") {
			return n, false, fmt.Errorf("%s: found a %s of the Hub, expected a model", text, kind)
		}
	}
	m := plainName.FindStringSubmatch(rest)
	switch {
	case m == nil && n.explicit:
		return n, false, fmt.Errorf("%s: expected the name of a model on the Hugging Face Hub, such as hf:org/name", text)
	case m == nil || !n.explicit && m[1] != "" && present(".", m[1]): // a path into a folder
		return n, false, nil
	}
	n.org, n.model, n.revision = m[1], m[2], cmp.Or(n.revision, m[3], mainRevision)
	return n, true, nil
}

// cut is a text up to any of some characters.
func cut(text, characters string) string {
	if i := strings.IndexAny(text, characters); i >= 0 {
		return text[:i]
	}
	return text
}

// cache is the folder in which huggingface_hub keeps downloads.
func cache() string {
	home, _ := os.UserHomeDir() // without one the relative path is not there either
	local := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache"))
	return cmp.Or(os.Getenv("HF_HUB_CACHE"), filepath.Join(cmp.Or(os.Getenv("HF_HOME"), filepath.Join(local, "huggingface")), "hub"))
}

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
	case base == snapshots && strings.HasPrefix(filepath.Base(filepath.Dir(abs)), models):
		return name{revision: mainRevision}.snapshot(filepath.Dir(filepath.Clean(dir)))
	case strings.HasPrefix(base, models) || present(dir, snapshots):
		return name{revision: mainRevision}.snapshot(dir)
	}
	found, err := filepath.Glob(filepath.Join(userpath.Literal(dir), models+"*"))
	if err == nil && len(found) > 0 {
		return "", fmt.Errorf("%s: found the Hub's cache, expected a model: name one, such as %s", dir,
			strings.Join(found[:min(len(found), 5)], ", "))
	}
	return dir, err
}

// present reports whether a folder has an entry, be it a link to nothing.
func present(dir, entry string) bool {
	_, err := os.Lstat(filepath.Join(dir, entry))
	return err == nil
}

// snapshot returns the snapshot of a revision, or a file in it. If no revision has the name main, that is the only snapshot.
func (n name) snapshot(dir string) (string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, snapshots))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var commits []string
	for _, e := range entries {
		commits = append(commits, e.Name())
	}
	commit := n.revision
	if text, err := os.ReadFile(filepath.Join(dir, "refs", n.revision)); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	switch {
	case slices.Contains(commits, commit):
	case len(commits) == 0:
		return "", fmt.Errorf("%s: a folder of the Hub's cache without a snapshot (refs/%s names %q): the download did not finish: %s",
			dir, n.revision, commit, Advice(dir))
	case n.revision != mainRevision:
		return "", fmt.Errorf("%s: a folder of the Hub's cache without the revision %s: found the snapshots %s", dir, n.revision,
			strings.Join(commits, ", "))
	case len(commits) > 1:
		return "", fmt.Errorf("%s: a folder of the Hub's cache with %d snapshots and none of refs/main: name one, such as %s", dir,
			len(commits), filepath.Join(dir, snapshots, commits[0]))
	default:
		commit = commits[0]
	}
	path := filepath.Join(dir, snapshots, commit, filepath.FromSlash(n.file))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: not in the Hub's cache, which has %s of this model: %s", path,
			Contents(filepath.Join(dir, snapshots, commit)), Advice(dir))
	}
	return path, nil
}
