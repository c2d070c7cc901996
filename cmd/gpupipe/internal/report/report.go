// Package report runs sections, each a command in a process of its own with a deadline, and collects what they print
// into one report: a Markdown file for people and a JSON file for programs. A section that crashes, hangs or runs out
// of time costs its own results only, and both files are written anew after every section.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/diskspace"
	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/internal/units"
)

// Status says how a section ended.
type Status string

// The states of a section.
const (
	Passed     Status = "passed"
	Failed     Status = "failed"     // its command reported an error or crashed
	Unfinished Status = "unfinished" // its time was over: the device hangs or is slow
	Skipped    Status = "skipped"    // it did not run, for the reason in Note
)

// Limit in an argument of a task stands for a duration: 70 % of the time that the task gets.
const Limit = "LIMIT"

// Task is a section to run.
type Task struct {
	Name   string
	Args   []string // of the program; Limit in them stands for most of the task's time
	Weight int      // its share of the time, relative to the other tasks
	Skip   string   // why it does not run; empty if it does
	Disk   int64    // bytes that it writes into the runner's folder; more than that must be free
	// Read extracts the results from what the command printed, which may be cut off, into the section. An error fails
	// the section.
	Read func(output []byte, s *Section) error
}

// Section holds the results of a task.
type Section struct {
	Name    string          `json:"name"`
	Status  Status          `json:"status"`
	Seconds float64         `json:"seconds"`
	Limit   float64         `json:"limit_seconds"`
	Command []string        `json:"command,omitempty"`
	Note    string          `json:"note,omitempty"`
	Errors  []string        `json:"errors,omitempty"`
	Tables  []Table         `json:"-"`
	Output  json.RawMessage `json:"output,omitempty"` // what the command printed, if it is JSON or lines of JSON
	Data    json.RawMessage `json:"data,omitempty"`   // what Read adds
}

// Table is shown in the Markdown file.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// Subject is the subject of sections: a device, or the machine.
type Subject struct {
	Name     string    `json:"name"`
	Title    string    `json:"title"`
	Sections []Section `json:"sections"`
}

// Report is the whole.
type Report struct {
	Version  string     `json:"version"`
	Started  time.Time  `json:"started"`
	Budget   string     `json:"budget"`
	System   System     `json:"system"`
	Subjects []*Subject `json:"subjects"`
	Done     bool       `json:"done"` // false while sections remain

	path string // without extension
}

// New returns an empty report that is written to path with the extensions .md and .json.
func New(path, version string, budget time.Duration) *Report {
	return &Report{Version: version, Started: time.Now().UTC().Truncate(time.Second), Budget: budget.String(), System: inspect(),
		path: path}
}

// Files are the names of the files.
func (r *Report) Files() (markdown, data string) { return r.path + ".md", r.path + ".json" }

// Subject adds a subject.
func (r *Report) Subject(name, title string) *Subject {
	s := &Subject{Name: name, Title: title}
	r.Subjects = append(r.Subjects, s)
	return s
}

// Problems lists the sections that failed or did not finish.
func (r *Report) Problems() (problems []string) {
	for _, subject := range r.Subjects {
		for _, s := range subject.Sections {
			if s.Status == Failed || s.Status == Unfinished {
				problems = append(problems, fmt.Sprintf("%s: %s: %s", subject.Name, s.Name, s.Status))
			}
		}
	}
	return problems
}

// Write writes both files.
func (r *Report) Write() error {
	markdown, data := r.Files()
	return errors.Join(jsonfile.Write(data, r, " "), atomicfile.WriteBytes(markdown, []byte(r.Markdown())))
}

// Runner runs tasks.
type Runner struct {
	Program  string // the file of the program that the tasks are commands of
	Dir      string // the working directory of the commands
	Progress func(task Task, limit time.Duration)
}

// lacksDisk says why there is too little room on the disk for a task; empty if there is enough.
func (r Runner) lacksDisk(task Task) string {
	free, known := diskspace.Free(r.Dir)
	if task.Disk == 0 || !known || free > task.Disk {
		return ""
	}
	folder := filepath.Dir(r.Dir)
	return fmt.Sprintf("needs %s in %s, which has %s free: set TMPDIR to a folder with more", units.Bytes(task.Disk),
		newScrubber("").clean(folder), units.Bytes(free))
}

// Run runs the tasks in order within a time, and writes the report after each. The time that a task leaves unused goes
// to those after it. It returns an error if the files cannot be written or the context ends.
func (r *Report) Run(ctx context.Context, runner Runner, subject *Subject, tasks []Task, within time.Duration) error {
	end := time.Now().Add(within)
	for i, task := range tasks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if task.Skip == "" {
			task.Skip = runner.lacksDisk(task)
			tasks[i] = task
		}
		s := Section{Name: task.Name, Status: Skipped, Note: task.Skip, Command: newScrubber(runner.Dir).cleanAll(task.Args)}
		if task.Skip == "" {
			limit := share(time.Until(end), tasks[i:])
			if runner.Progress != nil {
				runner.Progress(task, limit)
			}
			s = runner.run(ctx, task, limit)
		}
		subject.Sections = append(subject.Sections, s)
		if err := r.Write(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// share is the part of the time left that the first of the tasks may take.
func share(left time.Duration, tasks []Task) time.Duration {
	sum := 0
	for _, t := range tasks {
		if t.Skip == "" {
			sum += t.Weight
		}
	}
	return max(time.Second, left*time.Duration(tasks[0].Weight)/time.Duration(max(1, sum)))
}
