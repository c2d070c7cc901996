package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"go.yaml.in/yaml/v3"
)

// File is a file of runs. Relative paths in it begin at the working directory of the command that began the set. The
// set's folder records that, so that the set goes on from every folder.
type File struct {
	Path   string
	Start  string   // folder that relative paths begin at, once Place has found the set; "": the working directory
	Pins   hub.Pins // of names of the Hub, for all runs, once Place has found the set
	folder string   // of the set, if the user has named that in place of the file; ""
	begun  begun    // what folder records
	now    []string
}

// begun is what the folder of a set records of the command that began it.
type begun struct {
	File      string   `yaml:"file"` // as seen from StartedIn
	StartedIn string   `yaml:"started_in"`
	Set       []string `yaml:"set,omitempty"` // overrides of that command
}

const begunFile = "begun.yaml"

// Override is an assignment of a command line, section.key=value, for all runs of a set.
type Override struct {
	Assignment string
	Origin     string // the file that has it, if it is of an earlier command line; "": it is on the command line of this process
}

// name is how errors name the override.
func (o Override) name() string {
	if o.Origin == "" {
		return "--set " + o.Assignment
	}
	return o.Origin + ": " + o.Assignment
}

// OpenFile finds the file of runs at a path, which may be the folder of a set that has begun.
func OpenFile(path string) (*File, error) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		return &File{Path: path}, nil
	}
	b, err := readBegun(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: the folder has no %s: expected a YAML file, or the folder of such runs that have begun", path,
			begunFile)
	}
	if err != nil {
		return nil, err
	}
	f := &File{folder: path, begun: b}
	if f.Start = b.StartedIn; userpath.SameFolder(f.Start, ".") || !isFolder(f.Start) {
		f.Start = ""
	}
	f.Path = within(f.Start, b.File)
	if _, err := os.Stat(f.Path); err != nil {
		return nil, fmt.Errorf("%s: file: %w", filepath.Join(path, begunFile), err)
	}
	return f, nil
}

// Place returns the folder of the set as this process uses it. dir is the one that the file has. A set that was begun
// in another folder than the working directory is found if its folder is in one of those that the file is in, also if
// that was moved.
func (f *File) Place(dir string) (string, error) {
	folder, err := f.place(dir)
	if err != nil {
		return "", err
	}
	f.Pins = hub.Pins{}
	return folder, f.readPins(folder)
}

func (f *File) place(dir string) (string, error) {
	used, err := userpath.Expand(dir)
	if err != nil || f.folder != "" {
		return f.folder, err
	}
	if userpath.Rooted(used) {
		if b, err := readBegun(used); err == nil && f.begins(b) && isFolder(b.StartedIn) && !userpath.SameFolder(b.StartedIn, ".") {
			f.Start = b.StartedIn
		}
		return used, nil
	}
	above, err := filepath.Abs(f.Path)
	if err != nil {
		return "", err
	}
	folders := []string{"."}
	for dir := filepath.Dir(above); dir != folders[len(folders)-1]; dir = filepath.Dir(dir) {
		folders = append(folders, dir)
	}
	for _, at := range folders {
		b, err := readBegun(filepath.Join(at, used))
		if err == nil && !isFolder(b.StartedIn) { // it was moved
			b.StartedIn = at
		}
		if err != nil || !userpath.SameFolder(b.StartedIn, at) || !f.begins(b) {
			continue
		}
		if userpath.SameFolder(at, ".") {
			break
		}
		f.Start = at
		return fromHere(filepath.Join(at, used)), nil
	}
	return used, nil
}

// begins reports whether the file is the one that a set was begun with.
func (f *File) begins(b begun) bool { return userpath.SameFolder(within(b.StartedIn, b.File), f.Path) }

// Overrides returns the overrides of the command that began the set, if its folder stands for the file, and then the
// overrides now of this command.
func (f *File) Overrides(now []string) (all []Override) {
	if f.folder != "" {
		for _, s := range f.begun.Set {
			all = append(all, Override{s, filepath.Join(f.folder, begunFile)})
		}
	}
	f.now = now
	for _, s := range now {
		all = append(all, Override{Assignment: s})
	}
	return all
}

// Note says where the set was begun, if that is not the working directory.
func (f *File) Note(noun, dir string, note func(format string, args ...any)) {
	if f != nil && f.Start != "" && note != nil {
		note("the %s in %s was begun in %s: relative paths of %s begin there", noun, dir, f.Start, f.Path)
	}
}

// keep records in the folder of a set the commits of its names, and how it is begun. Only a command in the folder where
// that was changes the record of the latter.
func (f *File) keep(dir string) error {
	if err := f.writePins(dir); err != nil || f == nil || f.folder != "" || f.Start != "" {
		return err
	}
	start, err := os.Getwd()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(begun{f.Path, start, f.now})
	if err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, begunFile), text)
}

// readBegun reads the record in the folder of a set.
func readBegun(dir string) (b begun, err error) {
	path := filepath.Join(dir, begunFile)
	d, err := strictyaml.Load(path)
	if err == nil {
		err = d.Decode(&b)
	}
	if err == nil && (b.File == "" || b.StartedIn == "") {
		err = fmt.Errorf("%s: found no file or started_in, expected both", path)
	}
	return b, err
}

// within is a path that begins at a folder.
func within(folder, path string) string {
	if userpath.Rooted(path) {
		return path
	}
	return filepath.Join(folder, path)
}

// fromHere is a path as seen from the working directory, if it can be.
func fromHere(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if r, err := filepath.Rel(here, path); err == nil {
		return r
	}
	return path
}

func isFolder(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
