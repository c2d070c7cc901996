package main

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// saveSignals are the signals that ask for a checkpoint; Windows has none.
func saveSignals() []os.Signal { return nil }

// diskFull reports whether a write failed because the disk or the quota has no room.
func diskFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

// readerGone reports whether an error of a write means that its reader has gone away: a closed pipe or a closed
// console.
func readerGone(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA) ||
		errors.Is(err, windows.ERROR_PIPE_NOT_CONNECTED)
}
