package runs

import (
	"bytes"
	"context"
	"encoding/csv"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
)

// Comparison is a set of runs that a report compares: a sweep, or a study.
type Comparison[R Run] interface {
	// Set is the set of the runs.
	Set() (Set[R], error)
	// Event is a run that has ended, for JSON, and Ending says how it ended.
	Event(Ended[R]) any
	Ending(Ended[R]) string
	// Best describes the best result so far; "": none is shown.
	Best(outcomes map[R]Outcome) string
	// Later describes the runs that outcomes decide, as in "of the best trials to later steps".
	Later() string
	// Report compares the outcomes, which are complete, and writes its files into the set's folder.
	Report(outcomes map[R]Outcome) (Report, error)
}

// Report is the result of a comparison.
type Report struct {
	Results  any    // the content of results.json
	Markdown string // the same as a page
	Files    []string
}

// Load reads a comparison from a file, or from the folder of a set that has begun. overrides, section.key=value, apply
// to all runs. Its errors are user errors.
func Load[C any](path string, overrides []string, parse func(*strictyaml.Document, *File, []Override) (C, error)) (c C, err error) {
	f, err := OpenFile(path)
	if err != nil {
		return c, usererror.New(err)
	}
	d, err := strictyaml.Load(f.Path)
	if err != nil {
		return c, usererror.New(err)
	}
	c, err = parse(d, f, f.Overrides(overrides))
	return c, usererror.New(err)
}

// Compare executes the set of a comparison, and then reports on it. It holds the set's folder.
func Compare[R Run](ctx context.Context, c Comparison[R], o Options, progress func(Progress[R])) (rep Report, err error) {
	s, err := c.Set()
	if err != nil {
		return rep, err
	}
	release, err := takeFolder(s.Dir, o.Note)
	if err != nil {
		return rep, err
	}
	defer release()
	s.File.Note(s.Noun, s.Dir, o.Note)
	if s.Begin != nil {
		if err := s.Begin(ctx, o); err != nil {
			return rep, err
		}
	}
	outcomes, err := execute(ctx, s, o, progress)
	if err != nil {
		return rep, err
	}
	return c.Report(outcomes)
}

// Text is a file of a report.
type Text struct {
	Name string
	Text []byte
}

// WriteReport writes the files of a report into a folder: texts, what plot draws there, and results.json, for which
// files is set to all of them.
func WriteReport(dir string, texts []Text, plot func() ([]string, error), results any, files *[]string) error {
	for _, t := range texts {
		path := filepath.Join(dir, t.Name)
		if err := WriteFile(path, t.Text); err != nil {
			return err
		}
		*files = append(*files, path)
	}
	plots, err := plot()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "results.json")
	*files = append(append(*files, plots...), path)
	return WriteJSON(path, results)
}

// CSV encodes rows, the first of which is the head.
func CSV(rows [][]string) ([]byte, error) {
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(rows)
	return b.Bytes(), err
}
