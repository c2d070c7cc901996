package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/userpath"
)

// pinsFile has the commits of a set's names of the Hub. It is in the folders of the set and of its summaries. A set
// without such names has none.
const pinsFile = "commits.json"

// readPins adds the commits that a folder records to those that are known.
func (f *File) readPins(dir string) error {
	path := filepath.Join(dir, pinsFile)
	text, err := strictyaml.ReadSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	found := hub.Pins{}
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for name, commit := range found {
		if !hub.IsCommit(commit) {
			return fmt.Errorf("%s: %s: found %q, expected a commit", path, name, commit)
		}
	}
	maps.Copy(found, f.Pins)
	f.Pins = found
	return nil
}

// writePins records the commits in a folder.
func (f *File) writePins(dir string) error {
	if f == nil || len(f.Pins) == 0 {
		return nil
	}
	return WriteJSON(filepath.Join(dir, pinsFile), f.Pins)
}

// Summaries returns the folder of the summaries of a set, which is relative to the file, and takes the commits that it
// records. dir is the one that the file has.
func (f *File) Summaries(dir string) (string, error) {
	used, err := userpath.Expand(dir)
	if err != nil || used == "" {
		return "", err
	}
	used = within(filepath.Dir(f.Path), used)
	return used, f.readPins(used)
}

// PinsOf returns the commits that a set has recorded of its names of the Hub. path names its file or folder; any other
// file has none. The set itself reports mistakes.
func PinsOf(path string) hub.Pins {
	f, err := OpenFile(path)
	if err != nil {
		return nil
	}
	d, err := strictyaml.Load(f.Path)
	if err != nil {
		return nil
	}
	var dir, summaries string
	if d.DecodeSection("dir", &dir) != nil || dir == "" {
		return nil
	}
	if _, err := f.Place(dir); err != nil || d.DecodeSection("summaries", &summaries) != nil {
		return nil
	}
	if _, err := f.Summaries(summaries); err != nil {
		return nil
	}
	return f.Pins
}
