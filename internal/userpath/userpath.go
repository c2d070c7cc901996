// Package userpath reads paths as users write them: it expands what shells expand, which they do not in files and
// quotes, and knows one folder by several paths.
package userpath

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

var variable = regexp.MustCompile(`\$\{(\w+)\}|\$([A-Za-z_]\w*)`)

// Expand replaces a leading ~ by the home folder, and $NAME and ${NAME} by environment variables. A path that exists as
// it is stays as it is. ~user, and a variable that is not set or empty, is an error.
func Expand(path string) (string, error) {
	if !strings.HasPrefix(path, "~") && !strings.Contains(path, "$") {
		return path, nil
	}
	if _, err := os.Lstat(path); err == nil {
		return path, nil
	}
	var missing string
	out := variable.ReplaceAllStringFunc(path, func(s string) string {
		name := strings.Trim(s, "${}")
		value := os.Getenv(name)
		if value == "" {
			missing = name
		}
		return value
	})
	if missing != "" {
		return "", fmt.Errorf("%s: the environment variable %s is not set", path, missing)
	}
	user, rest, _ := strings.Cut(filepath.ToSlash(out), "/")
	if !strings.HasPrefix(user, "~") {
		return out, nil
	}
	if user != "~" {
		return "", fmt.Errorf("%s: found the home folder of another user, %s, expected its path", path, user)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%s: ~ is the home folder: %w", path, err)
	}
	return filepath.Join(home, filepath.FromSlash(rest)), nil
}

// Rooted reports whether a path does not begin at the working directory. On Windows not only absolute paths are so, but
// also those that begin at the root or at a folder of a drive: \data and C:data.
func Rooted(path string) bool {
	return filepath.IsAbs(path) || filepath.VolumeName(path) != "" || path != "" && os.IsPathSeparator(path[0])
}

// IsName reports whether a name can name a file, without a path, on every system.
func IsName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\:\x00") && filepath.IsLocal(s)
}

// SameFolder reports whether two paths lead to one folder, or to one file.
func SameFolder(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// Globbing are the characters that make a path a glob.
const Globbing = "*?["

// IsGlob reports whether a path is a glob.
func IsGlob(path string) bool { return strings.ContainsAny(path, Globbing) }

// Literal is a path as the pattern of filepath.Glob that matches it alone.
func Literal(path string) string {
	if runtime.GOOS == "windows" { // its patterns have no escapes, and its names neither * nor ?
		return strings.ReplaceAll(path, "[", "[[]")
	}
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
