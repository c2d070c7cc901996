//go:build linux || darwin || freebsd

// Package diskspace says how much space there is on disks.
package diskspace

import "syscall"

// Free returns the bytes that may be written to a folder's file system, and whether that is known.
func Free(dir string) (bytes int64, known bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
