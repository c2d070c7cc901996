package sidecar

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// newShared makes a file in memory.
func newShared() (*os.File, error) {
	fd, err := unix.MemfdCreate("gpupipe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "shared memory"), nil
}

// createUnnamed creates a file without a name in a folder, and closes it. It fails if the folder cannot be written to,
// or if its file system has no files without names.
func createUnnamed(dir string) error {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// seal fixes the size, since truncating the file would crash the other process.
func seal(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	return err
}

func sealed(f *os.File) error {
	found, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err == nil && found&seals != seals {
		err = fmt.Errorf("its size is not sealed")
	}
	return err
}

// samePerson refuses a connection with a process of another user.
func samePerson(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failed == nil && int(peer.Uid) != os.Getuid() {
		failed = fmt.Errorf("found user %d, expected %d", peer.Uid, os.Getuid())
	}
	return failed
}

// endWithHost makes the system kill this process when the thread that started it ends. It is called when the socket is
// gone; before that the process ends by itself, so that it can remove the folder (see Work). If the system refuses, the
// process ends by itself later, too.
func endWithHost() { _ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }
