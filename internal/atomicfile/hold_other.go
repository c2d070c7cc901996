//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package atomicfile

import (
	"os"
	"runtime"
)

// hold has nothing to do on Windows, where a file that is open cannot be removed.
func hold(*os.File) {}

func holdFolder(string) (release func()) { return func() {} }

// held tells whether somebody may be holding a file or folder.
func held(path string) bool {
	info, err := os.Lstat(path)
	return runtime.GOOS != "windows" || err != nil || info.IsDir()
}
