package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// From names a checkpoint that a run goes on from, instead of the newest one of run.dir. If it is one of run.dir, later
// checkpoints and measurements are set aside first. Otherwise the run branches off into run.dir, which gets copies of
// the checkpoint and of the measurements up to it.
type From struct {
	Run  string // folder of the run that has the checkpoint
	Step int
}

const (
	// asideFolder, in a run folder, holds numbered run folders with what --from has set aside.
	asideFolder = "aside"
	// branchFile, in a run folder, says that the folder is a branch that is not complete yet.
	branchFile = "branch.incomplete"
)

// startFrom starts at a checkpoint that the user names.
func (t *trainer) startFrom(ctx context.Context, from From) (start, error) {
	if !userpath.SameFolder(from.Run, t.folder.path) && !t.folder.unfinishedBranch() {
		if err := t.folder.refuseRun(); err != nil {
			return start{}, err
		}
	}
	c, err := checkpoint.At(from.Run, from.Step)
	if err != nil {
		return start{}, err
	}
	return t.resumeAt(ctx, c)
}

// goFrom prepares the run folder for going on from a checkpoint that the user names, of a run that has recorded the
// steps up to done. It deletes nothing; after a kill the same command begins anew.
func (t *trainer) goFrom(done int) error {
	from := t.job.options.From
	switch {
	case from == nil:
		return nil
	case userpath.SameFolder(from.Run, t.folder.path):
		return t.setAside(done)
	}
	return t.branchOff(*from, done)
}

// setAside moves later checkpoints into a folder of their own, with a copy of the run's other files.
func (t *trainer) setAside(done int) error {
	dir := t.folder.path
	steps, err := checkpoint.Steps(dir)
	if err != nil {
		return err
	}
	later, err := recordsAfter(filepath.Join(dir, metricsFile), done)
	if err != nil || !later && (len(steps) == 0 || steps[0] <= t.step) {
		return err
	}
	aside, err := newAside(dir)
	if err != nil {
		return err
	}
	for _, name := range []string{configFile, kernelsFile, metricsFile, systemFile, expertsFile, journalFile} {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(aside, name)); err != nil {
			return err
		}
	}
	moved, err := t.checkpoints.store.MoveAside(t.step, aside)
	if err != nil {
		return err
	}
	what := "the measurements after it"
	if len(moved) > 0 {
		what = fmt.Sprintf("the checkpoints of steps %s and %s", printable.List(moved), what)
	}
	t.job.journal.noteEvent(eventNote, t.step, "going back to step %d: %s are kept in %s", t.step, what, aside)
	return nil
}

// newAside makes the next folder for files that are set aside.
func newAside(run string) (string, error) {
	if err := os.MkdirAll(filepath.Join(run, asideFolder), 0o777); err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		dir := filepath.Join(run, asideFolder, strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o777); !errors.Is(err, os.ErrExist) {
			return dir, err
		}
	}
}

// branchOff copies what another run has up to the step. The copy is complete once completeBranch is called.
func (t *trainer) branchOff(from From, done int) error {
	dir := t.folder.path
	if err := t.folder.removeUnfinished(); err != nil {
		return err
	}
	if err := atomicfile.WriteBytes(filepath.Join(dir, branchFile), []byte("of "+from.Run+"\n")); err != nil {
		return err
	}
	if err := t.copyCheckpoints(from); err != nil {
		return err
	}
	for _, name := range []string{metricsFile, systemFile, expertsFile} {
		if err := metrics.Copy(filepath.Join(from.Run, name), filepath.Join(dir, name), done); err != nil {
			return err
		}
	}
	if err := copyJournal(filepath.Join(from.Run, journalFile), filepath.Join(dir, journalFile), done); err != nil {
		return err
	}
	t.job.journal.noteEvent(eventNote, t.step, "branching off from step %d of %s", t.step, from.Run)
	return copyEvents(dir)
}

// copyCheckpoints copies the checkpoint of the step and, if the run keeps it, the best one up to there.
func (t *trainer) copyCheckpoints(from From) error {
	steps := []int{from.Step}
	if t.checkpoints.keepBest {
		all, err := checkpoint.Steps(from.Run)
		if err != nil {
			return err
		}
		for len(all) > 0 && all[0] > from.Step {
			all = all[1:]
		}
		best, err := bestOf(from.Run, all)
		if err != nil {
			return err
		}
		if best != nil && best.Step != from.Step {
			steps = append(steps, best.Step)
		}
	}
	for _, step := range steps {
		c, err := checkpoint.At(from.Run, step)
		if err == nil {
			c, err = t.checkpoints.store.Copy(c)
		}
		if err != nil {
			return err
		}
		if step == from.Step {
			t.checkpoints.newest = c.Dir
		}
	}
	return nil
}

// completeBranch records that a branch is complete.
func (f *folder) completeBranch() error {
	err := os.Remove(filepath.Join(f.path, branchFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// unfinishedBranch reports whether the folder is a branch that was interrupted before it was complete.
func (f *folder) unfinishedBranch() bool {
	_, err := os.Lstat(filepath.Join(f.path, branchFile))
	return err == nil
}

// removeUnfinished removes the copies that an interrupted branch has made, maybe of another run or of a later step.
func (f *folder) removeUnfinished() error {
	if !f.unfinishedBranch() {
		return nil
	}
	steps, err := checkpoint.Steps(f.path)
	if err != nil {
		return err
	}
	copies := []string{metricsFile, systemFile, expertsFile, journalFile, eventsDir}
	for _, step := range steps {
		copies = append(copies, filepath.Join(checkpoint.Folder, fmt.Sprintf("step-%d", step)))
	}
	for _, name := range copies {
		err = errors.Join(err, os.RemoveAll(filepath.Join(f.path, name)))
	}
	return err
}

// recordsAfter reports whether a log has a record of a later step.
func recordsAfter(path string, step int) (bool, error) {
	records, err := metrics.Read(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return len(records) > 0 && records[len(records)-1].Step > step, err
}

// rewriteFile writes what rewrite makes of a file, if there is one. The result appears whole or not at all.
func rewriteFile(from, to string, rewrite func(w io.Writer, r io.Reader) error) error {
	f, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return atomicfile.Write(to, func(w io.Writer) error { return rewrite(w, f) })
}

// copyFile copies a file, if there is one.
func copyFile(from, to string) error {
	return rewriteFile(from, to, func(w io.Writer, r io.Reader) error {
		_, err := io.Copy(w, r)
		return err
	})
}

// copyJournal copies the events up to a step. Lines that cannot be read are not copied.
func copyJournal(from, to string, step int) error {
	return rewriteFile(from, to, func(w io.Writer, r io.Reader) error {
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadBytes('\n')
			var e struct {
				Step int `json:"step"`
			}
			if json.Unmarshal(line, &e) == nil && e.Step <= step {
				if _, err := w.Write(line); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}

// copyEvents writes the measurements of a run folder for TensorBoard, at the times of system.jsonl.
func copyEvents(dir string) (err error) {
	steps, err := metrics.Read(filepath.Join(dir, metricsFile))
	if err != nil || len(steps) == 0 {
		return ignoreMissing(err)
	}
	usage, err := metrics.Read(filepath.Join(dir, systemFile))
	if ignoreMissing(err) != nil {
		return err
	}
	at := map[int]time.Time{}
	for _, r := range usage {
		at[r.Step] = time.UnixMilli(int64(math.Round(r.Values[timeName] * 1e3)))
	}
	events, err := metrics.NewEvents(filepath.Join(dir, eventsDir), 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	for _, r := range append(steps, usage...) {
		delete(r.Values, timeName)
		if err := events.Scalars(r.Step, at[r.Step], r.Sorted()...); err != nil {
			return err
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
