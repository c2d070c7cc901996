//go:build unix

package sidecar

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// folderCanBeMade reports whether a folder that does not exist can be made. A host that is killed here leaves nothing,
// because the file that createUnnamed makes ends with the process. Where the file system has no such files,
// folderCanBeMade makes and removes the folder. The next host sweeps a folder that a killed host left between the two.
func folderCanBeMade(dir string) bool {
	if createUnnamed(filepath.Dir(dir)) == nil {
		return true
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return false
	}
	_ = os.Remove(dir) // another host may have swept it
	return true
}

// privateFolder makes a folder that other users cannot enter, or checks that an existing one is private. A folder that
// it makes is locked until leave removes it, so sweep keeps it.
func privateFolder(dir string) (leave func(), err error) {
	for {
		if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
			return func() {}, private(dir)
		} else if err != nil {
			return nil, err
		}
		f, err := lockFolder(dir, unix.LOCK_EX)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // sweep removed it before it was locked
		case err != nil && !lockless(err):
			_ = os.Remove(dir)
			return nil, err
		}
		return func() {
			_ = os.Remove(dir)
			if err == nil { // else the file system has no locks for folders, and sweep removes nothing there
				f.Close()
			}
		}, nil
	}
}

// lockless reports whether an error means that the file system has no locks for folders.
func lockless(err error) bool {
	return slices.ContainsFunc([]error{unix.EBADF, unix.ENOTSUP, unix.EOPNOTSUPP, unix.ENOSYS},
		func(e error) bool { return errors.Is(err, e) })
}

func private(dir string) error {
	st, err := os.Lstat(dir)
	if err == nil && (!st.IsDir() || st.Mode().Perm()&0o077 != 0) {
		err = fmt.Errorf("%s: found %v, expected a folder that only its owner can enter, or none", dir, st.Mode())
	}
	return err
}

// lockFolder locks a folder until the file is closed or the process ends. It returns os.ErrNotExist for a folder that
// was removed meanwhile.
func lockFolder(dir string, how int) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), how)
	}
	if err == nil {
		var mine, there os.FileInfo
		if mine, err = f.Stat(); err == nil {
			there, err = os.Lstat(dir)
		}
		if err == nil && !os.SameFile(mine, there) {
			err = os.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ownName matches the folders that newSocket makes.
var ownName = regexp.MustCompile(`^gpupipe-[A-Z2-7]{16}$`)

// sweep removes the folders of workers that were killed together with their hosts. A folder that can be locked belongs
// to no live process. sweep removes only a file named socket in it, and then the folder if it is empty.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() || !ownName.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := lockFolder(path, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue
		}
		removeSocket(filepath.Join(path, "socket"))
		f.Close()
	}
}
