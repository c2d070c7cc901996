// Package diskspace says how much space there is on disks.
package diskspace

import "golang.org/x/sys/windows"

// Free returns the bytes that this user may write to a folder's volume, and whether that is known.
func Free(dir string) (bytes int64, known bool) {
	path, err := windows.UTF16PtrFromString(dir)
	var free, total, all uint64
	if err != nil || windows.GetDiskFreeSpaceEx(path, &free, &total, &all) != nil {
		return 0, false
	}
	return int64(free), true
}
