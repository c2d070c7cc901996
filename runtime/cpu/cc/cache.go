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
	libraryPrefix = "library-" // of the names of libraries' files
	lockPause     = 2 * time.Millisecond
	maxCache      = 128 << 20 // bytes: the code of some ten thousand units
)

// MakeCache makes a folder for Options.Cache, or checks that only the user may write to it. It removes what killed
// processes left there, and libraries that were not used for a long time if there are too many.
func MakeCache(dir string) error {
	if err := codecache.Make(dir); err != nil {
		return err
	}
	codecache.Trim(dir, maxCache)
	return nil
}

// Source is a translation unit and the function that it defines.
type Source struct{ Unit, Symbol string }

// Result is what Compile returns for a source.
type Result struct {
	Library []byte
	Kept    bool
	Err     error
}

// CompileAll is Compile for several sources. One run of the compiler makes those that are not kept: it compiles each
// unit on its own, as Compile does, and links them to one library.
func (c *Compiler) CompileAll(ctx context.Context, sources []Source) []Result {
	results := make([]Result, len(sources))
	c.compileMissing(ctx, sources, results)
	for i, s := range sources {
		if r := &results[i]; r.Library == nil {
			r.Library, r.Kept, r.Err = c.Compile(ctx, s.Unit, s.Symbol)
		}
	}
	return results
}

// compileMissing sets the results of the sources whose libraries are kept, and compiles the others at once. It omits
// units that another compiler makes. If the compiler refuses a unit, it omits all whose libraries are not kept.
func (c *Compiler) compileMissing(ctx context.Context, sources []Source, results []Result) {
	f, err := c.chosen(ctx)
	if err != nil {
		return
	}
	kept := map[string][]byte{} // libraries by name; nil: damaged or removed
	var missing []int
	var units []Source
	var paths []string
	for i, s := range sources {
		path := c.path(s.Unit, f)
		if name := codecache.Use(path); name != nil {
			if _, ok := kept[string(name)]; !ok { // several units have one library
				kept[string(name)] = c.library(name)
			}
			results[i].Library = kept[string(name)]
		}
		if results[i].Library != nil {
			results[i].Kept = true
			continue
		}
		release, ok := tryHold(path)
		if !ok {
			continue
		}
		defer release()
		missing, units, paths = append(missing, i), append(units, s), append(paths, path)
	}
	if len(units) < 2 {
		return
	}
	library, err := c.build(ctx, units, f)
	if err != nil {
		return
	}
	c.keep(library, paths...)
	for _, i := range missing {
		results[i].Library = library
	}
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
	if library := c.use(path); library != nil {
		return library, true, nil
	}
	defer hold(ctx, path)()
	if library := c.use(path); library != nil {
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
	library, err := c.build(ctx, []Source{{unit, symbol}}, f)
	if err != nil {
		return nil, err
	}
	c.keep(library, c.path(unit, f))
	return library, nil
}

// keep writes a library, and to the files of its units the library's name. On a full disk the next process compiles
// again.
func (c *Compiler) keep(library []byte, paths ...string) {
	if c.cache == "" {
		return
	}
	name := libraryPrefix + digest(string(library))
	if codecache.Write(filepath.Join(c.cache, name), library) != nil {
		return
	}
	for _, path := range paths {
		_ = codecache.Write(path, []byte(name))
	}
}

// use returns the kept library of a unit; nil if there is none.
func (c *Compiler) use(path string) []byte {
	if name := codecache.Use(path); name != nil {
		return c.library(name)
	}
	return nil
}

// library returns the kept library of a name; nil if there is none.
func (c *Compiler) library(name []byte) []byte {
	return codecache.Use(filepath.Join(c.cache, string(name)))
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
	l := lock(path)
	if ok, err := l.TryLockContext(ctx, lockPause); !ok || err != nil {
		l.Close()
		return func() {}
	}
	return releasing(l)
}

// tryHold is hold, but does not wait: it reports whether no other compiler makes the file, as far as locks tell.
func tryHold(path string) (release func(), ok bool) {
	if path == "" {
		return func() {}, true
	}
	l := lock(path)
	switch ok, err := l.TryLock(); {
	case err != nil:
		l.Close()
		return func() {}, true
	case !ok:
		l.Close()
		return nil, false
	}
	return releasing(l), true
}

func lock(path string) *flock.Flock {
	return flock.New(filepath.Join(filepath.Dir(path), codecache.LockPrefix+filepath.Base(path)))
}

func releasing(l *flock.Flock) func() {
	return func() {
		os.Remove(l.Path())
		l.Close()
	}
}

// path returns the file that names a unit's library; "" without a cache.
func (c *Compiler) path(unit string, f *flags) string { return c.file("kernel", unit, f.String()) }

// file returns the file of what the parts and the compiler determine; "" without a cache.
func (c *Compiler) file(kind string, parts ...string) string {
	if c.cache == "" {
		return ""
	}
	return filepath.Join(c.cache, kind+"-"+digest(c.identity+"\x00"+strings.Join(parts, "\x00")))
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:20])
}
