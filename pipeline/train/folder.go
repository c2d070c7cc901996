package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/lock"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// What a run folder holds.
const (
	configFile     = "config.yaml"
	metricsFile    = "metrics.jsonl"
	traceFile      = trace.FileName
	eventsDir      = "tensorboard"
	checkpointsDir = "checkpoints"
)

// folder is the run folder while the run has it to itself.
type folder struct {
	folders []string // that were made for it, the innermost first
	files   []string // that the run makes and that were not there before
	release func()   // of the lock; nil: not taken
	begun   bool     // the run: what it made stays
	once    sync.Once
}

// takeFolder makes the run folder if need be, finds out whether it can be written to, and locks it.
func (r *run) takeFolder(context.Context) error {
	dir, f := r.Run.Dir, &r.folder
	fail := func(err error) error { return usererror.New(fmt.Errorf("run.dir: %w", err)) }
	f.folders = atomicfile.MissingFolders(dir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fail(err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return fail(err)
	}
	f.release, err = lock.Folder(dir)
	if errors.Is(err, lock.ErrUnsupported) {
		r.Report.Note("run.dir: %v", err)
	} else if err != nil {
		return fail(err)
	}
	for _, name := range []string{configFile, kernelsFile, metricsFile, traceFile, eventsDir, checkpointsDir} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			f.files = append(f.files, path)
		}
	}
	return nil
}

// leave lets go of the folder. A run that did not begin leaves nothing behind.
func (f *folder) leave() { f.once.Do(f.goAway) }

func (f *folder) goAway() {
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
			os.Remove(path) // only while it is empty
		}
	}
}

// traceLines has the engine write the trace, with the rows in the order of the lines.
func (r *run) traceLines() {
	r.trace.Tracks(trace.RunTrack)
	for _, l := range r.engine.Ranks() {
		r.trace.Tracks(l.Tracks()...)
	}
	r.engine.Trace = r.trace
	if r.feeder != nil {
		r.trace.Tracks(trace.DataTrack)
		r.feeder.Trace(r.trace)
	}
}

// keepTrace renames the trace of a run that is resumed, trace.1.json the first, so that each part of it has its own.
func keepTrace(dir string) error {
	parts, err := trace.Earlier(dir)
	if err != nil {
		return err
	}
	next := 1
	if len(parts) > 0 {
		next = parts[len(parts)-1] + 1
	}
	err = os.Rename(filepath.Join(dir, traceFile), filepath.Join(dir, trace.EarlierName(next)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// openFolder makes what a run writes on the way, once.
func (r *run) openFolder(context.Context) (err error) {
	if r.folder.begun {
		r.traceLines()
		return nil
	}
	dir, told := r.Run.Dir, r.step
	if r.owed {
		told--
	}
	for _, step := range []func() error{
		func() error { return writeFile(filepath.Join(dir, configFile), r.YAML()) },
		r.keepKernels,
		func() (err error) {
			r.store, err = checkpoint.NewStore(dir, checkpoint.Options{Keep: r.Train.Keep})
			return err
		},
		func() (err error) {
			r.log, err = metrics.Resume(filepath.Join(dir, metricsFile), told)
			return err
		},
		func() (err error) {
			r.events, err = metrics.NewEvents(filepath.Join(dir, eventsDir), told+1)
			return err
		},
		func() (err error) {
			if r.step >= r.Train.Steps && !r.owed {
				return nil // there will be nothing to trace: the file of what was done stays
			}
			if err := keepTrace(dir); err != nil {
				return err
			}
			r.trace, err = trace.Create(filepath.Join(dir, traceFile), "gpupipe "+dir)
			if err == nil {
				r.traceLines()
			}
			return err
		},
	} {
		if err := step(); err != nil {
			return usererror.New(fmt.Errorf("run folder: %w", err))
		}
	}
	r.folder.begun = true
	return nil
}
