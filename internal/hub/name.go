package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mainRevision is the revision that a name without one means.
const mainRevision = "main"

// Kind is a kind of repositories.
type Kind int

// Kinds of repositories.
const (
	Models Kind = iota
	DataSets
)

func (k Kind) String() string { return [...]string{"model", "data set"}[k] }

// InAPI is the element of the API's addresses that stands for the kind.
func (k Kind) InAPI() string { return [...]string{"models", "datasets"}[k] }

// prefix begins the name of a repository's folder in the cache.
func (k Kind) prefix() string { return k.InAPI() + "--" }

// Name is what a text names on the Hub.
type Name struct {
	Kind     Kind
	ID       string // ORG/NAME; NAME alone for the oldest repositories
	Revision string // a branch, tag or commit
	Path     string // a file or folder of the repository; of data sets also a glob or a configuration; "": all of it
	Split    string // of a data set; "": the default

	explicit bool // the text is the name of a repository and no path
}

// Text is the name as users write it.
func (n Name) Text() string {
	text := "hf:"
	if n.Kind == DataSets {
		text += "datasets/"
	}
	text += n.ID
	if n.Kind == DataSets && n.Path != "" {
		text += "/" + n.Path
	}
	if n.Revision != "" && n.Revision != mainRevision {
		text += "@" + strings.ReplaceAll(n.Revision, "/", "%2F")
	}
	if n.Kind == Models && n.Path != "" {
		text += "/" + n.Path
	}
	if n.Split != "" {
		text += ":" + n.Split
	}
	return text
}

// Dir is the repository's folder in the cache.
func (n Name) Dir() string { return filepath.Join(Cache(), n.Folder()) }

// Folder is the name of the repository's folder in the cache.
func (n Name) Folder() string { return n.Kind.prefix() + strings.ReplaceAll(n.ID, "/", "--") }

var (
	plainName = regexp.MustCompile(`^((?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*?)(?:@([\w./-]+))?$`)
	id        = regexp.MustCompile(`^(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*$`)
	notInID   = regexp.MustCompile(`[^\w./-]|--|\.\.|(?:^|/)[_.-]`)
	revision  = regexp.MustCompile(`^\w[\w./+-]*$`)
	special   = regexp.MustCompile(`^refs/(?:convert|pr)/[\w.-]+`)
	split     = regexp.MustCompile(`:([\pL\pN_]+(?:\.[\pL\pN_]+)*)$`)
	hfScheme  = regexp.MustCompile(`^hf:(?://)?(.*)$`)
	address   = regexp.MustCompile(`^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.*)$`)
	scheme    = regexp.MustCompile(`^[a-z][a-z0-9+.-]+://`)
	inAddress = regexp.MustCompile(`^((?:[^/]+/)?[^/]+)/(?:tree|blob|resolve|raw)/(refs/(?:convert|pr)/[^/]+|[^/]+)(?:/(.*))?$`)
)

// isAddress reports whether a text is no path: it begins as an address or a name of the Hub.
func isAddress(text string) bool { return IsAddress(text) || scheme.MatchString(text) }

// Parse reads a name of the Hub: hf:org/name[@revision][/file], hf:datasets/org/name[/path][@revision][:split], an
// address at huggingface.co, the name of a folder in the cache, or org/name. ok reports whether the text may be one; a
// path never is.
func Parse(text string) (n Name, ok bool, err error) {
	switch {
	case hfScheme.MatchString(text):
		n, err = parseHF(hfScheme.FindStringSubmatch(text)[1])
	case address.MatchString(text):
		n, err = parseAddress(address.FindStringSubmatch(text)[1])
	case scheme.MatchString(text):
		return n, false, fmt.Errorf("%s: gpupipe downloads from the Hugging Face Hub alone: download the file, and name it", text)
	default:
		return parsePlain(text)
	}
	if err != nil {
		return n, false, fmt.Errorf("%s: %w", text, err)
	}
	n.explicit, n.Revision = true, cmp.Or(n.Revision, mainRevision)
	return n, true, nil
}

// parsePlain reads org/name, or the name of a folder in the cache.
func parsePlain(text string) (n Name, ok bool, err error) {
	folder, explicit := strings.CutPrefix(text, Models.prefix())
	if explicit {
		text = strings.Replace(folder, "--", "/", 1)
	}
	m := plainName.FindStringSubmatch(text)
	if m == nil {
		return n, false, nil
	}
	org, _, two := strings.Cut(m[1], "/")
	if !explicit && two && present(".", org) { // a path into a folder
		return n, false, nil
	}
	return Name{ID: m[1], Revision: cmp.Or(m[2], mainRevision), explicit: explicit}, true, nil
}

// errName is the error of a text that is no name.
var errName = errors.New("expected the name of a model on the Hugging Face Hub, such as hf:org/name, or of a data set, such as hf:datasets/org/name")

// kindOf takes the kind off the beginning of a name.
func kindOf(rest string) (Kind, string, error) {
	if rest, ok := strings.CutPrefix(rest, "datasets/"); ok {
		return DataSets, rest, nil
	}
	if strings.HasPrefix(rest, "spaces/") {
		return Models, "", errors.New("found a space of the Hub, expected a model or a data set")
	}
	return Models, strings.TrimPrefix(rest, "models/"), nil
}

// parseHF reads what follows hf:.
func parseHF(rest string) (n Name, err error) {
	if n.Kind, rest, err = kindOf(rest); err != nil {
		return n, err
	}
	if m := split.FindStringSubmatch(rest); m != nil && n.Kind == DataSets {
		n.Split, rest = m[1], strings.TrimSuffix(rest, m[0])
	}
	parts := strings.SplitN(rest, "/", 3)
	if before, after, ok := strings.Cut(parts[0], "@"); ok && len(parts) > 1 { // hf:name@revision/file
		n.ID, rest = before, after+"/"+strings.Join(parts[1:], "/")
		n.Revision, n.Path = cutRevision(rest)
	} else if before, after, ok := strings.Cut(strings.Join(parts[:min(2, len(parts))], "/"), "@"); ok {
		n.ID = before
		n.Revision, n.Path = cutRevision(strings.Join(append([]string{after}, parts[min(2, len(parts)):]...), "/"))
	} else {
		n.ID = before
		if len(parts) == 3 {
			n.Path = parts[2]
		}
		if i := strings.LastIndex(n.Path, "@"); i >= 0 {
			n.Path, n.Revision = n.Path[:i], n.Path[i+1:]
		}
	}
	return n, n.check()
}

// cutRevision takes a revision off the beginning of a path.
func cutRevision(rest string) (revision, path string) {
	if m := special.FindString(rest); m != "" {
		return m, strings.TrimPrefix(rest[len(m):], "/")
	}
	revision, path, _ = strings.Cut(rest, "/")
	return revision, path
}

// parseAddress reads what follows huggingface.co/.
func parseAddress(rest string) (n Name, err error) {
	if n.Kind, rest, err = kindOf(strings.TrimSuffix(cut(rest, "?#"), "/")); err != nil {
		return n, err
	}
	n.ID = rest
	if m := inAddress.FindStringSubmatch(rest); m != nil {
		n.ID, n.Revision, n.Path = m[1], m[2], m[3]
		if path, err := url.PathUnescape(n.Path); err == nil {
			n.Path = path
		}
	}
	return n, n.check()
}

// check refuses texts that are no names.
func (n *Name) check() error {
	n.Path = strings.Trim(n.Path, "/")
	if r, err := url.PathUnescape(n.Revision); err == nil {
		n.Revision = r
	}
	switch {
	case strings.Contains(n.ID, ":"):
		id, after, _ := strings.Cut(n.ID, ":")
		if n.Kind == Models {
			return fmt.Errorf("found %q behind a colon, expected the name of a file: hf:%s/NAME.gguf", after, id)
		}
		return fmt.Errorf("found the split %q, expected letters, digits, _ and dots", after)
	case notInID.MatchString(n.ID):
		return fmt.Errorf("found %q in the name %q, expected letters from a to z, digits, -, _ and dots, first a letter or a digit, "+
			"neither .. nor --", notInID.FindString(n.ID), n.ID)
	case !id.MatchString(n.ID):
		return errName
	case n.Revision != "" && (!revision.MatchString(n.Revision) || !slashed(n.Revision)):
		return fmt.Errorf("found the revision %q, expected a branch, a tag or a commit: letters from a to z, digits, /, -, +, _ and dots",
			n.Revision)
	case n.Path != "" && !fs.ValidPath(n.Path):
		return fmt.Errorf("found the path %q, expected one in the repository", n.Path)
	}
	return nil
}

// cut is a text up to any of some characters.
func cut(text, characters string) string {
	if i := strings.IndexAny(text, characters); i >= 0 {
		return text[:i]
	}
	return text
}

// present reports whether a folder has an entry, be it a link to nothing.
func present(dir, entry string) bool {
	_, err := os.Lstat(filepath.Join(dir, entry))
	return err == nil
}
