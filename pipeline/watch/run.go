package watch

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// The files of a run folder that are read.
const (
	configFile  = "config.yaml"
	metricsFile = "metrics.jsonl"
	systemFile  = "system.jsonl"
	eventsFile  = "events.jsonl"
	expertsFile = "experts.jsonl"
	resultFile  = "result.json" // of a learning-rate range test, which has ended
)

// notRuns are the folders in a run folder.
var notRuns = []string{"checkpoints", "tensorboard"}

// asideFolder, in a run folder, has earlier forms of the run.
const asideFolder = "aside"

const (
	maxConfig   = 256 << 10 // bytes of config.yaml
	keptEvents  = 500
	keptSamples = 50
	maxText     = 16 << 10         // bytes of an event or a sample
	tailBytes   = 64 << 10         // of metrics.jsonl, for the newest step of a run that no page shows
	restsAfter  = 90 * time.Second // without a new line a run that has not finished counts as stopped
)

// run is a run folder. A run that a page shows is loaded: its files are followed.
type run struct {
	name string
	root *os.Root
	dir  string // in the root
	at   string // the folder's path

	loaded   bool
	contents contents
	problem  string  // the last error of reading a file
	samples  []Event // see Watcher.Sample
	sampled  int     // the newest checkpoint that was sampled, or could not be

	config   settings
	configAt fs.FileInfo
	tail     tail
	active   time.Time // when metrics.jsonl was last written
	ended    bool      // there is a file of a result
}

// contents are what was read from the files of a run. The counters grow with every change, so that a stream finds the
// changes.
type contents struct {
	files    []*lines
	parser   metrics.Parser
	series   *series
	timeline *timeline
	events   []Event
	start    start
	experts  experts
	badLines int

	generation int // of the series: rows that a stream has sent have changed
	revision   int // of all but the series, the timeline and the experts
	drawn      int // of the timeline
	loaded     int // of the experts
}

// Event is a line of events.jsonl, or a sample.
type Event struct {
	Time  float64 `json:"time"` // seconds since 1970
	Step  float64 `json:"step"`
	Kind  string  `json:"event"`
	Text  string  `json:"text"`
	Start *start  `json:"start,omitempty"`
}

// start is what a run wrote about itself when it began.
type start struct {
	Steps         int     `json:"steps"`
	Parameters    float64 `json:"parameters"`
	Active        float64 `json:"active_parameters"`
	FLOPsPerToken float64 `json:"flops_per_token"`
	Optimizer     string  `json:"optimizer"`
	Precision     string  `json:"precision"`
	Ranks         []rank  `json:"ranks"`
}

// rank is a rank of the pipeline.
type rank struct {
	Name     string  `json:"name"`
	Member   string  `json:"member,omitempty"`
	Device   string  `json:"device"`
	Hardware string  `json:"hardware"`
	Units    string  `json:"units"`
	Memory   float64 `json:"memory_bytes"`
	Peak     float64 `json:"peak_flops"`
}

// settings are the keys of config.yaml that the page shows.
type settings struct {
	Steps     int    `json:"steps"`
	Arch      string `json:"arch"`
	Optimizer string `json:"optimizer"`
	Schedule  string `json:"schedule"`
	Stages    int    `json:"stages"`
	Precision string `json:"precision"`
	Text      string `json:"text"` // of the file
}

// tail is the newest record of a run that is not loaded.
type tail struct {
	info fs.FileInfo
	step float64
	loss float64
	rate float64
}

func newRun(name string, f found) *run { return &run{name: name, root: f.root, dir: f.dir, at: f.path} }

func (r *run) path(name string) string { return path.Join(r.dir, name) }

// load begins to follow the files.
func (r *run) load() {
	r.loaded, r.configAt = true, nil
	r.forget()
}

// forget drops all contents, so that the next poll reads all files from the beginning.
func (r *run) forget() {
	was := r.contents
	r.contents = contents{series: newSeries(), timeline: &timeline{tracks: map[int]*track{}, processes: map[int]string{}},
		generation: was.generation + 1, revision: was.revision + 1, drawn: was.drawn + 1, loaded: was.loaded + 1}
	for _, name := range []string{metricsFile, systemFile, trace.FileName, eventsFile, expertsFile} {
		r.contents.files = append(r.contents.files, &lines{root: r.root, name: r.path(name)})
	}
}

// unload drops the contents of a run that no page shows.
func (r *run) unload() {
	r.forget()
	r.loaded, r.contents.files = false, nil
}

// poll reads new content, and reports whether there was any.
func (r *run) poll() (changed bool) {
	changed = r.pollConfig()
	_, err := r.root.Stat(r.path(resultFile))
	r.ended = err == nil
	if info, err := r.root.Stat(r.path(metricsFile)); err == nil {
		r.active = info.ModTime()
		if !r.loaded && (r.tail.info == nil || info.Size() != r.tail.info.Size() || !info.ModTime().Equal(r.tail.info.ModTime())) {
			r.readTail(info)
			return true
		}
	}
	if !r.loaded {
		return changed
	}
	problem, again := "", false
	takers := []func([]byte){r.takeMetrics, r.takeMetrics, r.takeTrace, r.takeEvent, r.contents.experts.take}
	for i, file := range r.contents.files {
		err := file.poll(func() { again = true }, func(line []byte) { takers[i](line); changed = true })
		if again {
			break
		}
		if err != nil {
			problem = err.Error()
		}
	}
	if again { // a file was replaced, as when a run is resumed
		r.forget()
		return true
	}
	if changed {
		r.contents.series.elapse()
		r.readExperts()
	}
	if problem != r.problem {
		r.problem, changed = problem, true
	}
	return changed
}

// takeMetrics takes a line of metrics.jsonl or of system.jsonl.
func (r *run) takeMetrics(line []byte) {
	step, values, err := r.contents.parser.Parse(line)
	if err != nil {
		r.contents.badLines++
		return
	}
	before := len(r.contents.series.steps)
	if row := r.contents.series.set(step, values); row < before-lateRows || len(r.contents.series.steps) < before {
		r.contents.generation++
	}
}

func (r *run) takeTrace(line []byte) {
	r.contents.timeline.take(line)
	r.contents.drawn++
}

// readExperts reads the newest line of experts.jsonl, if there is a new one.
func (r *run) readExperts() {
	read, err := r.contents.experts.read()
	switch {
	case err != nil:
		r.contents.badLines++
		r.contents.revision++
	case read:
		r.contents.loaded++
	}
}

func (r *run) takeEvent(line []byte) {
	if e, ok := r.event(line); ok {
		r.contents.events = lastOf(append(r.contents.events, e), keptEvents)
		if e.Start != nil {
			r.contents.start = *e.Start
		}
	}
}

// event reads an event. Its text is bounded.
func (r *run) event(line []byte) (e Event, ok bool) {
	r.contents.revision++
	if err := json.Unmarshal(line, &e); err != nil {
		r.contents.badLines++
		return e, false
	}
	e.Text = shortened(e.Text)
	return e, true
}

// shortened bounds a text.
func shortened(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + " …"
	}
	return strings.ToValidUTF8(text, "�")
}

// lastOf are the last n of a list. They are copied once in a while, so that the rest can be freed.
func lastOf(all []Event, n int) []Event {
	if len(all) < 2*n {
		return all
	}
	return append([]Event(nil), all[len(all)-n:]...)
}

// pollConfig reads config.yaml if it has changed.
func (r *run) pollConfig() bool {
	info, err := r.root.Stat(r.path(configFile))
	if err != nil || !info.Mode().IsRegular() || r.configAt != nil && os.SameFile(info, r.configAt) &&
		info.ModTime().Equal(r.configAt.ModTime()) {
		return false
	}
	r.configAt, r.config = info, settings{}
	r.contents.revision++
	f, err := r.root.Open(r.path(configFile))
	if err != nil {
		return true
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return true
	}
	keys, err := strictyaml.Flatten(text)
	if err != nil {
		return true
	}
	number := func(key string) int { n, _ := strconv.Atoi(keys[key]); return max(0, n) }
	r.config = settings{number("train.steps"), keys["model.arch"], keys["optimizer.name"], keys["pipeline.schedule"],
		number("pipeline.stages"), keys["train.precision"], ""}
	if r.loaded {
		r.config.Text = strings.ToValidUTF8(string(text), "�")
	}
	return true
}

// readTail reads the newest record at the end of metrics.jsonl.
func (r *run) readTail(info fs.FileInfo) {
	r.tail = tail{info: info, loss: missing, rate: missing}
	if !info.Mode().IsRegular() {
		return
	}
	f, err := r.root.Open(r.path(metricsFile))
	if err != nil {
		return
	}
	defer f.Close()
	text := make([]byte, min(info.Size(), tailBytes))
	n, _ := f.ReadAt(text, info.Size()-int64(len(text)))
	text = text[:n]
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for len(text) > 0 {
		text = bytes.TrimRight(text, "\n")
		line := text[bytes.LastIndexByte(text, '\n')+1:]
		if step, values, err := r.contents.parser.Parse(line); err == nil {
			r.tail.step = step
			for _, v := range values {
				switch string(v.Name) {
				case "loss":
					r.tail.loss = v.Value
				case "tokens_per_s":
					r.tail.rate = v.Value
				}
			}
			return
		}
		text = text[:len(text)-len(line)]
	}
}
