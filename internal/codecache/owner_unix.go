//go:build unix

package codecache

import (
	"io/fs"
	"syscall"
)

// foreign reports whether a folder belongs to neither the user nor root.
func foreign(info fs.FileInfo, user int) bool {
	st, known := info.Sys().(*syscall.Stat_t)
	return known && st.Uid != 0 && int(st.Uid) != user
}
