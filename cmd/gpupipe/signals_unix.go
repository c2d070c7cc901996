//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// saveSignals are the signals that ask for a checkpoint.
func saveSignals() []os.Signal { return []os.Signal{syscall.SIGUSR1} }

// diskFull reports whether a write failed because the disk, the quota or a limit of the user has no room.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// readerGone reports whether an error of a write means that its reader has gone away: a closed pipe or a closed
// terminal.
func readerGone(err error) bool { return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) }
