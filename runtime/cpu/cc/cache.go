package cc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/gpupipe/gpupipe/internal/codecache"
)

const (
	lockPrefix = ".lock-" // of the names of files that are locked while a unit is compiled
	lockPause  = 2 * time.Millisecond
	maxCache   = 128 << 20 // bytes of libraries: some ten thousand
)

// MakeCache makes a folder for Options.Cache, or checks that only the user may write to it. It removes what killed
// processes left there, and libraries that were not used for a long time if there are too many.
func MakeCache(dir string) error {
	if err := codecache.Make(dir); err != nil {
		return err
	}
	codecache.Sweep(dir, lockPrefix)
	codecache.Trim(dir, maxCache)
	return nil
}

// Compile returns the shared library of a translation unit that defines the function symbol, and reports whether it was
// kept. A unit that the compiler refuses is a *SourceError. Of several compilers with one cache, in one process or in
// several, one compiles a unit, and the others wait for its library.
func (c *Compiler) Compile(ctx context.Context, unit, symbol string) (library []byte, kept bool, err error) {
	f, err := c.chosen(ctx)
	if err != nil {
		return nil, false, err
	}
	path := c.path(unit, f)
	if library := codecache.Use(path); library != nil {
		return library, true, nil
	}
	defer hold(ctx, path)()
	if library := codecache.Use(path); library != nil {
		return library, true, nil
	}
	library, err = c.Again(ctx, unit, symbol)
	return library, false, err
}

// Again is Compile, but does not use what was kept.
func (c *Compiler) Again(ctx context.Context, unit, symbol string) ([]byte, error) {
	f, err := c.chosen(ctx)
	if err != nil {
		return nil, err
	}
	library, err := c.build(ctx, unit, symbol, f)
	if err != nil {
		return nil, err
	}
	if path := c.path(unit, f); path != "" {
		_ = codecache.Write(path, library) // on a full disk the next process compiles again
	}
	return library, nil
}

// Accepts reports whether the compiler makes a library of a unit. A refusal is kept too, so each is compiled once.
func (c *Compiler) Accepts(ctx context.Context, unit, symbol string) bool {
	f, err := c.chosen(ctx)
	if err != nil {
		return false
	}
	refusal := c.file("refusal", unit, f.String())
	if codecache.Use(refusal) != nil {
		return false
	}
	_, _, err = c.Compile(ctx, unit, symbol)
	var source *SourceError
	if errors.As(err, &source) && refusal != "" {
		_ = codecache.Write(refusal, []byte(source.Line))
	}
	return err == nil
}

// hold waits until no other compiler makes a file of the cache. Where there are no locks, it does not wait: a unit is
// compiled twice then.
func hold(ctx context.Context, path string) (release func()) {
	if path == "" {
		return func() {}
	}
	lock := filepath.Join(filepath.Dir(path), lockPrefix+filepath.Base(path))
	l := flock.New(lock)
	if ok, err := l.TryLockContext(ctx, lockPause); !ok || err != nil {
		l.Close()
		return func() {}
	}
	return func() {
		os.Remove(lock)
		l.Close()
	}
}

// path returns the file of a unit's library; "" without a cache.
func (c *Compiler) path(unit string, f *flags) string { return c.file("kernel", unit, f.String()) }

// file returns the file of what the parts and the compiler determine; "" without a cache.
func (c *Compiler) file(kind string, parts ...string) string {
	if c.cache == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(c.identity + "\x00" + strings.Join(parts, "\x00")))
	return filepath.Join(c.cache, kind+"-"+hex.EncodeToString(sum[:20]))
}
