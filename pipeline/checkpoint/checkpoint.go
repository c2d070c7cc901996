// Package checkpoint saves and finds the checkpoints of a run. A checkpoint is a folder,
// <run>/checkpoints/step-N, that appears whole or not at all, whatever moment the process is killed at, and
// whose manifest detects damage.
package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

// Folder, in a run folder, holds the checkpoints.
const Folder = "checkpoints"

// The files of a checkpoint. Large models are sharded: model-00001-of-0000N.safetensors with an index.
const (
	modelBase     = "model"
	optimizerBase = "optimizer"
	configFile    = "config.json"
	stateFile     = "state.json"
	manifestFile  = "manifest.json"
)

// ErrNone is in the error of Latest when a run has no checkpoint that is whole.
var ErrNone = errors.New("no usable checkpoint")

// Checkpoint is a saved checkpoint whose every file was compared with its manifest.
type Checkpoint struct {
	Dir   string
	Step  int
	files map[string]FileInfo
}

// Problem is a checkpoint that was passed over, and why.
type Problem struct {
	Dir string
	Err error
}

func (p Problem) String() string { return fmt.Sprintf("%s is damaged: %v", p.Dir, p.Err) }

// Open verifies the checkpoint in a folder: its manifest, the size and SHA-256 of every file it lists, and the
// headers of the tensors. Files that it does not list are ignored. Reading all bytes takes a second a gigabyte
// or so.
func Open(dir string) (*Checkpoint, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Dir: dir, Step: m.Step, files: map[string]FileInfo{}}
	if step, ok := stepOf(filepath.Base(dir)); ok && step != m.Step {
		return nil, fmt.Errorf("%s: %s is of step %d", dir, manifestFile, m.Step)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range m.Files {
		// Some file systems find model.safetensors by the name Model.safetensors, too.
		if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == f.Name }) {
			return nil, fmt.Errorf("%s: missing: %w", filepath.Join(dir, f.Name), os.ErrNotExist)
		}
		if err := f.verify(dir); err != nil {
			return nil, err
		}
		c.files[f.Name] = f
	}
	for _, name := range []string{configFile, stateFile} {
		if !c.Has(name) {
			return nil, fmt.Errorf("%s: %s does not list %s", dir, manifestFile, name)
		}
	}
	for _, open := range []func() (*safetensors.Reader, error){c.Model, c.Optimizer} {
		r, err := open()
		if err != nil {
			return nil, err
		}
		r.Close()
	}
	return c, nil
}

// Latest finds the newest checkpoint of a run that is whole. Damaged ones are passed over and reported, newest first.
// Without any whole one the error wraps ErrNone. It changes nothing on disk. The run may go on meanwhile and delete
// older checkpoints: a deleted checkpoint does not count as damaged.
func Latest(runDir string) (c *Checkpoint, problems []Problem, err error) {
	for range MaxAttempts {
		if c, problems, err = latest(runDir); !slices.ContainsFunc(problems, func(p Problem) bool { return gone(p.Dir) }) {
			break
		}
	}
	return c, problems, err
}

// MaxAttempts is how many times a reader looks for the newest checkpoint while the run deletes older ones, before it
// reports the error.
const MaxAttempts = 10

func gone(dir string) bool {
	_, err := os.Lstat(dir)
	return errors.Is(err, os.ErrNotExist)
}

// Gone reports whether the checkpoint has been deleted since it was opened, as a run does with its older ones.
func (c *Checkpoint) Gone() bool { return gone(c.Dir) }

func latest(runDir string) (*Checkpoint, []Problem, error) {
	list, err := scan(filepath.Join(runDir, Folder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	var problems []Problem
	for _, e := range list {
		if e.kind == trash {
			continue
		}
		c, err := Open(e.dir)
		if err == nil {
			return c, problems, nil
		}
		problems = append(problems, Problem{e.dir, err})
	}
	text := "there is none"
	if len(problems) > 0 {
		var lines []string
		for _, p := range problems {
			lines = append(lines, p.String())
		}
		text = strings.Join(lines, "; ")
	}
	return nil, problems, fmt.Errorf("%s: %w: %s", runDir, ErrNone, text)
}

// At verifies a run's checkpoint of one step, as Open does. Where there is none, the error wraps ErrNone and lists
// which there are.
func At(runDir string, step int) (*Checkpoint, error) {
	list, err := scan(filepath.Join(runDir, Folder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(e entry) bool { return e.kind == trash })
	var steps []string
	for _, e := range slices.Backward(list) {
		steps = append(steps, strconv.Itoa(e.step))
	}
	var problems []error
	for _, e := range list {
		if e.step != step {
			continue
		}
		c, err := Open(e.dir)
		if err == nil {
			return c, nil
		}
		problems = append(problems, err)
	}
	switch {
	case len(problems) > 0:
		return nil, fmt.Errorf("%s: %w of step %d: %w", runDir, ErrNone, step, errors.Join(problems...))
	case len(steps) == 0:
		return nil, fmt.Errorf("%s: %w: there is none", runDir, ErrNone)
	}
	return nil, fmt.Errorf("%s: %w of step %d: those that there are are of steps %s", runDir, ErrNone, step,
		strings.Join(slices.Compact(steps), ", "))
}

// Model opens the model's tensors. The caller closes the reader.
func (c *Checkpoint) Model() (*safetensors.Reader, error) { return c.tensors(modelBase) }

// Optimizer opens the optimizer's tensors. The caller closes the reader.
func (c *Checkpoint) Optimizer() (*safetensors.Reader, error) { return c.tensors(optimizerBase) }

// tensors uses the files of the manifest, and ignores other files in the folder.
func (c *Checkpoint) tensors(base string) (*safetensors.Reader, error) {
	for _, name := range []string{base + ".safetensors", base + ".safetensors.index.json"} {
		if c.Has(name) {
			return safetensors.Open(filepath.Join(c.Dir, name))
		}
	}
	return nil, fmt.Errorf("%s: %s does not list %s.safetensors", c.Dir, manifestFile, base)
}

// Config returns config.json.
func (c *Checkpoint) Config() ([]byte, error) { return c.File(configFile) }

// State decodes state.json into what was saved as Contents.State.
func (c *Checkpoint) State(into any) error {
	text, err := c.File(stateFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(c.Dir, stateFile), err)
	}
	return nil
}

// Has reports whether the checkpoint holds a file.
func (c *Checkpoint) Has(name string) bool {
	_, ok := c.files[name]
	return ok
}

// File reads one of its files, tokenizer.json for instance; the error wraps os.ErrNotExist where there is none.
func (c *Checkpoint) File(name string) ([]byte, error) {
	if !c.Has(name) {
		return nil, fmt.Errorf("%s: no %s in this checkpoint: %w", c.Dir, name, os.ErrNotExist)
	}
	return os.ReadFile(filepath.Join(c.Dir, name))
}

// kind classifies the folders under checkpoints by their names.
type kind int

const (
	whole    kind = iota // step-N
	replaced             // .old-step-N-…: what step-N was until it is replaced for good
	trash                // .tmp-step-N-…: being written, or being deleted
)

type entry struct {
	dir  string
	step int
	kind kind
}

var (
	stepName = regexp.MustCompile(`^step-(0|[1-9][0-9]*)$`)
	sideName = regexp.MustCompile(`^\.(old|tmp)-step-(0|[1-9][0-9]*)-[A-Z2-7]{10}$`)
)

func stepOf(name string) (int, bool) {
	m := stepName.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil
}

// scan lists our folders, newest step first, and of one step the real one first.
func scan(dir string) ([]entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, f := range files {
		e := entry{dir: filepath.Join(dir, f.Name())}
		if step, ok := stepOf(f.Name()); ok {
			e.step = step
		} else if m := sideName.FindStringSubmatch(f.Name()); m != nil {
			e.kind = trash
			if m[1] == "old" {
				e.kind = replaced
			}
			if e.step, err = strconv.Atoi(m[2]); err != nil {
				continue
			}
		} else {
			continue
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.step, a.step), cmp.Compare(a.kind, b.kind), cmp.Compare(a.dir, b.dir))
	})
	return out, nil
}
