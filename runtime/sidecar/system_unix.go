//go:build unix && !linux

package sidecar

import (
	"errors"
	"net"
	"os"
)

// newShared makes a file without a name.
func newShared() (*os.File, error) {
	f, err := os.CreateTemp("", "gpupipe-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// createUnnamed fails: this system creates no files without names.
func createUnnamed(string) error { return errors.ErrUnsupported }

func seal(*os.File) error   { return nil }
func sealed(*os.File) error { return nil }

// samePerson checks nothing on this system: the mode of the folder and the token protect the socket.
func samePerson(*net.UnixConn) error { return nil }

// endWithHost does nothing on this system: a worker notices that its host is gone.
func endWithHost() {}
