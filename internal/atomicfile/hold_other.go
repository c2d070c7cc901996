//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package atomicfile

import (
	"os"
	"runtime"
)

// hold does nothing on Windows, where an open file cannot be removed.
func hold(*os.File) {}

func holdFolder(string) (release func()) { return func() {} }

// held reports whether a process may be holding a file or folder.
func held(path string) bool {
	info, err := os.Lstat(path)
	return runtime.GOOS != "windows" || err != nil || info.IsDir()
}
