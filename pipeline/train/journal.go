package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
)

// journal appends what happens during a run to events.jsonl, for those who watch the run: one object a line, with
// "time" in seconds since 1970, "step", "event" and "text". A resumed run continues the file. Notes to the user pass
// through the journal. The first error of writing ends it, and does not end the run.
type journal struct {
	Report
	mu   sync.Mutex
	file *os.File
	kept []journalEvent // before the file is open
	err  error
}

// Kinds of events.
const (
	eventStart      = "start"
	eventResume     = "resume"
	eventNote       = "note"
	eventSkipped    = "skipped" // a batch
	eventCheckpoint = "checkpoint"
	eventFault      = "fault"   // of a device or a member
	eventRestart    = "restart" // after a fault
	eventEnd        = "end"
	EventReplica    = "replica" // that trains on its own is lost, or joins
)

// journalEvent is a line of the file.
type journalEvent struct {
	Time  float64      `json:"time"`
	Step  int          `json:"step"`
	Kind  string       `json:"event"`
	Text  string       `json:"text"`
	Start *startRecord `json:"start,omitempty"`
}

// startRecord describes a run that starts or resumes.
type startRecord struct {
	Steps         int          `json:"steps"`
	Parameters    int64        `json:"parameters"`
	Active        int64        `json:"active_parameters"`
	FLOPsPerToken float64      `json:"flops_per_token,omitempty"` // 0: not known, of a model that a module builds
	Precision     string       `json:"precision,omitempty"`
	Ranks         []rankRecord `json:"ranks"`
}

// rankRecord describes a rank.
type rankRecord struct {
	Name     string  `json:"name"`
	Member   string  `json:"member,omitempty"`
	Device   string  `json:"device"`
	Hardware string  `json:"hardware"`
	Units    string  `json:"units"`
	Memory   int64   `json:"memory_bytes"`
	Peak     float64 `json:"peak_flops,omitempty"` // per second; 0: not known
}

func newRankRecord(p engine.RankPlan, peak float64) rankRecord {
	return rankRecord{Name: p.Name, Member: p.Member, Device: p.Device.Name, Hardware: p.Device.Hardware(), Units: p.Chunks(),
		Memory: p.Allocated + p.Staging, Peak: peak}
}

// Note implements Report.
func (j *journal) Note(format string, args ...any) {
	j.write(journalEvent{Kind: eventNote, Text: fmt.Sprintf(format, args...)})
	j.Report.Note(format, args...)
}

// noteEvent is Note with a kind and a step.
func (j *journal) noteEvent(kind string, step int, format string, args ...any) {
	j.write(journalEvent{Kind: kind, Step: step, Text: fmt.Sprintf(format, args...)})
	j.Report.Note(format, args...)
}

// write appends an event. Before the file is open, it is kept.
func (j *journal) write(e journalEvent) {
	e.Time = unixSeconds(time.Now())
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		j.kept = append(j.kept, e)
		return
	}
	j.append(e)
}

func (j *journal) append(e journalEvent) {
	line, err := json.Marshal(e)
	if err == nil && j.err == nil {
		_, err = j.file.Write(append(line, '\n')) // one call, so that a kill does not leave half a line
	}
	j.err = errors.Join(j.err, err)
}

// open opens the file and writes what was kept.
func (j *journal) open(path string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	j.file = f
	for _, e := range j.kept {
		j.append(e)
	}
	j.kept = nil
	return nil
}

// close closes the file. It returns the first error since open.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	err := errors.Join(j.err, j.file.Close())
	j.file = nil
	return err
}

// unixSeconds is a time in seconds since 1970, to the millisecond.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

// noteStart records that the run starts or resumes.
func (t *trainer) noteStart(s Start) {
	c := t.job.config
	r := startRecord{Steps: s.Steps, Parameters: s.Parameters, Active: s.Active, Precision: s.Precision}
	if _, module := t.job.hooks.ModelModule(); !module {
		r.FLOPsPerToken = c.Model.FLOPsPerToken()
	}
	for i, p := range s.Ranks {
		r.Ranks = append(r.Ranks, newRankRecord(p, t.deployment.peak(i)))
	}
	t.recorder.system.flops, t.recorder.system.peak = r.FLOPsPerToken, t.deployment.totalPeak()
	kind, text := eventStart, fmt.Sprintf("%d steps", s.Steps)
	if s.FirstStep > 0 {
		kind, text = eventResume, fmt.Sprintf("going on after step %d of %d", s.FirstStep, s.Steps)
	}
	t.job.journal.write(journalEvent{Kind: kind, Step: s.FirstStep, Text: text, Start: &r})
}

// noteEnd records how the run ended.
func (t *trainer) noteEnd(ctx context.Context, err error) {
	text := "finished"
	switch {
	case err != nil && ctx.Err() == nil:
		text = err.Error()
	case err != nil || t.result.Interrupted:
		text = "interrupted"
	case t.recorder.stopped != "":
		text = "stopped by " + t.recorder.stopped
	}
	t.job.journal.write(journalEvent{Kind: eventEnd, Step: t.step, Text: text})
}
