//go:build unix

package codecache

import (
	"io/fs"
	"syscall"
)

// foreign tells whether a folder belongs to another than the user, and not to root either, who may write anywhere.
func foreign(info fs.FileInfo, user int) bool {
	st, known := info.Sys().(*syscall.Stat_t)
	return known && st.Uid != 0 && int(st.Uid) != user
}
