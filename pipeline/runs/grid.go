package runs

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
)

// Grid is what sweeps and studies have in common: runs of one config that differ in some keys, each with every seed,
// and their folder.
type Grid struct {
	Noun      string               // what the runs make up, as in "study"
	Dir       string               // the folder; see Place
	Seeds     []uint64             // of the initial weights and the order of the data
	File      *File                // that describes the runs
	Doc       *strictyaml.Document // its text
	Common    Assignments          // keys of the config, for all runs
	Overrides []Override

	base *strictyaml.Document // the config; see Open
}

// Errorf is an error at a key of the file.
func (g *Grid) Errorf(key, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", g.At(key), key, fmt.Errorf(format, args...))
}

// At is the place of a key in the file.
func (g *Grid) At(key string) string { return g.Doc.At(key) }

// Place finds the folder that the file calls dir.
func (g *Grid) Place(dir string) (err error) {
	if g.Dir, err = g.File.Place(dir); err != nil {
		return g.Errorf("dir", "%w", err)
	}
	return nil
}

// Open opens the config of the runs.
func (g *Grid) Open(b Base) (err error) {
	g.base, err = b.open(g.Doc, filepath.Dir(g.File.Path))
	return err
}

// Composer begins with a copy of the config of the runs.
func (g *Grid) Composer() *Composer {
	return &Composer{doc: g.base.Clone(), start: g.File.Start, pins: g.File.Pins}
}

// SetRun sets the seed and the folder of a run.
func (g *Grid) SetRun(c *Composer, seed uint64, dir string) {
	c.Put("init.seed", seed, g.At("seeds"))
	c.Put("data.seed", seed, g.At("seeds"))
	c.Put("run.dir", dir, g.At("dir"))
}

// Repeats reports whether one of xs is given twice.
func Repeats[T comparable](xs []T) bool {
	for i, x := range xs {
		if slices.Contains(xs[:i], x) {
			return true
		}
	}
	return false
}
