package identity

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/internal/lock"
)

// Refresh takes over what other processes have written to the authority's file: tokens, revocations, expelled members.
func (a *Authority) Refresh() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refresh()
}

// refresh reads the file if it has changed. The caller holds a.mu.
func (a *Authority) refresh() error {
	if a.path == "" {
		return nil
	}
	st, err := os.Stat(a.path)
	if err != nil {
		return err
	}
	if a.merged != nil && os.SameFile(a.merged, st) && a.merged.ModTime().Equal(st.ModTime()) {
		return nil
	}
	if err = a.merge(); err == nil {
		a.merged = st
	}
	return err
}

// merge adds the content of the file to the state. Nothing is taken back: a token stays revoked, a member expelled. The
// caller holds a.mu or the only reference.
func (a *Authority) merge() error {
	file, err := ReadAuthority(a.path)
	if err != nil {
		return err
	}
	if !file.certificate.Equal(a.certificate) {
		return errors.New(a.path + ": found the CA of another run")
	}
	for _, t := range file.tokens {
		i := slices.IndexFunc(a.tokens, func(known issuedToken) bool { return known.Hash == t.Hash })
		if i < 0 {
			a.tokens = append(a.tokens, t)
			continue
		}
		a.tokens[i].Used, a.tokens[i].Revoked = max(a.tokens[i].Used, t.Used), a.tokens[i].Revoked || t.Revoked
	}
	a.forgetTokens()
	for member := range file.expelled {
		a.expelled[member] = true
	}
	return nil
}

// lockTimeout is how long a process waits until another one has written the file.
const lockTimeout = 5 * time.Second

// lockFolder keeps other processes from writing the file of an authority. Where the file system has no locks, two
// processes that change the authority at the same moment may lose a change.
func lockFolder(dir string) (release func(), err error) {
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		release, err = lock.Folder(dir)
		switch {
		case errors.Is(err, lock.ErrUnsupported):
			return func() {}, nil
		case !errors.Is(err, lock.ErrHeld) || time.Now().After(deadline):
			return release, err
		}
	}
}
