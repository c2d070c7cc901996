package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

// Steps lists the steps of a run's checkpoints, the newest first. Damaged ones are among them.
func Steps(runDir string) (steps []int, err error) {
	list, err := scan(filepath.Join(runDir, Folder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range list {
		if e.kind != trash && !slices.Contains(steps, e.step) {
			steps = append(steps, e.step)
		}
	}
	return steps, nil
}

// MoveAside moves the checkpoints after a step into the folder Folder of another run folder on the same disk, and
// returns their steps. Kept copies of replaced checkpoints move too. It begins with the newest: a run that resumes
// after a kill finds checkpoints without a gap.
func (s *Store) MoveAside(after int, runDir string) (moved []int, err error) {
	list, err := scan(s.dir)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(e entry) bool { return e.kind == trash || e.step <= after })
	to := filepath.Join(runDir, Folder)
	if err := errors.Join(s.fs.MkdirAll(to), s.fs.SyncDir(runDir)); err != nil {
		return nil, err
	}
	for _, e := range list {
		if err := s.fs.Rename(e.dir, filepath.Join(to, filepath.Base(e.dir))); err != nil {
			return moved, err
		}
		if !slices.Contains(moved, e.step) {
			moved = append(moved, e.step)
		}
	}
	return moved, errors.Join(s.fs.SyncDir(to), s.fs.SyncDir(s.dir))
}

// Copy writes a checkpoint of another run, as it is. The copy appears whole or not at all.
func (s *Store) Copy(c *Checkpoint) (*Checkpoint, error) {
	fail := func(err error) error { return fmt.Errorf("copy %s: %w", c.Dir, err) }
	tmp := s.side("tmp", c.Step)
	if err := s.copyFiles(tmp, c); err != nil {
		s.fs.RemoveAll(tmp)
		return nil, fail(err)
	}
	final, old, err := s.publish(tmp, c.Step)
	if err != nil {
		return nil, fail(err)
	}
	if old != "" {
		if err := s.discard(old); err != nil {
			return nil, fail(err)
		}
	}
	return Open(final)
}

// copyFiles copies the manifest and the files that it lists into a fresh folder.
func (s *Store) copyFiles(dir string, c *Checkpoint) error {
	if err := s.fs.Mkdir(dir); err != nil {
		return err
	}
	names := []string{manifestFile}
	for name := range c.files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		_, err := s.writeFile(dir, safetensors.Output{Name: name, Encode: func(w io.Writer) error {
			f, err := os.Open(filepath.Join(c.Dir, name))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(w, f)
			return err
		}})
		if err != nil {
			return err
		}
	}
	return s.fs.SyncDir(dir)
}
