package atomicfile

import (
	"errors"
	"slices"

	"golang.org/x/sys/windows"
)

// Busy reports whether an error means that a file, or one in a folder, is open in a program that lets nobody replace or
// remove it meanwhile. Most programs open files so.
func Busy(err error) bool {
	return slices.ContainsFunc([]error{windows.ERROR_SHARING_VIOLATION, windows.ERROR_ACCESS_DENIED, windows.ERROR_LOCK_VIOLATION,
		windows.ERROR_USER_MAPPED_FILE, windows.ERROR_DIR_NOT_EMPTY}, func(e error) bool { return errors.Is(err, e) })
}
