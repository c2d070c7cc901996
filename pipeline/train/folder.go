package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// The contents of a run folder.
const (
	configFile  = "config.yaml"
	metricsFile = "metrics.jsonl"
	systemFile  = "system.jsonl"
	expertsFile = "experts.jsonl" // of mixtures of experts
	journalFile = "events.jsonl"
	traceFile   = trace.FileName
	eventsDir   = "tensorboard"
)

// folder is the run folder while the run has locked it.
type folder struct {
	path     string
	folders  []string // created for it, the innermost first
	files    []string // that the run creates and that did not exist before
	release  func()   // releases the lock; nil: not locked
	reserved *folder  // of a Reservation, which has created and locked it; nil: none
	begun    bool     // the run has written its files, which stay
	begunAt  int      // the step after which it has
	once     sync.Once
}

// Reservation is a run folder that a process holds before it trains there, and between several attempts.
type Reservation struct{ folder *folder }

// Reserve creates a run folder, checks that it is writable, and locks it. more are names of what else the process
// writes there.
func Reserve(dir string, more []string, note func(format string, args ...any)) (*Reservation, error) {
	f := &folder{path: dir}
	if err := f.take(note, more...); err != nil {
		f.leave()
		return nil, err
	}
	return &Reservation{f}, nil
}

// Close releases the folder. If no run has begun in it, what was created there is removed, and so is the folder.
func (r *Reservation) Close() { r.folder.leave() }

func newFolder(dir string, r *Reservation) *folder {
	f := &folder{path: dir}
	if r != nil {
		f.reserved = r.folder
	}
	return f
}

// take creates the folder, checks that it is writable, and locks it. more names the files that are written there
// besides the files of the run.
func (f *folder) take(note func(format string, args ...any), more ...string) error {
	if f.reserved != nil {
		return nil
	}
	fail := func(err error) error { return usererror.Errorf("run.dir: %w", err) }
	if err := atomicfile.CheckName(f.path); err != nil {
		return fail(err)
	}
	f.folders = atomicfile.MissingFolders(f.path)
	if err := os.MkdirAll(f.path, 0o777); err != nil {
		return fail(err)
	}
	probe, err := os.CreateTemp(f.path, ".probe-*")
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return fail(err)
	}
	f.release, err = lock.Folder(f.path)
	if errors.Is(err, lock.ErrUnsupported) {
		note("run.dir: %v", err)
	} else if err != nil {
		return fail(err)
	}
	for _, name := range append(more, branchFile, configFile, kernelsFile, metricsFile, systemFile, expertsFile, journalFile, traceFile,
		eventsDir, checkpoint.Folder) {
		path := filepath.Join(f.path, name)
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			f.files = append(f.files, path)
		}
	}
	return nil
}

// refuseRun returns an error if the folder holds a run.
func (f *folder) refuseRun() error {
	names, err := os.ReadDir(filepath.Join(f.path, checkpoint.Folder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, logged := os.Stat(filepath.Join(f.path, metricsFile))
	if len(names) > 0 || logged == nil {
		return fmt.Errorf("run.dir: %s holds a run already: continue it with --resume, or choose another folder", f.path)
	}
	return nil
}

// leave releases the folder. A run that has not begun leaves nothing behind.
func (f *folder) leave() {
	if r := f.reserved; r != nil {
		r.begun = r.begun || f.begun
		return
	}
	f.once.Do(f.cleanUp)
}

func (f *folder) cleanUp() {
	if !f.begun {
		for _, path := range f.files {
			os.RemoveAll(path)
		}
	}
	if f.release != nil {
		f.release()
	}
	if !f.begun {
		for _, path := range f.folders {
			os.Remove(path) // only if it is empty
		}
	}
}
