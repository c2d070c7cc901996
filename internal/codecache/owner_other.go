//go:build !unix

package codecache

import "io/fs"

// foreign returns false: folders have no owners on this system.
func foreign(fs.FileInfo, int) bool { return false }
