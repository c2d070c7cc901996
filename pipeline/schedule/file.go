package schedule

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The text of a schedule is a header in comments, then a line of actions for each stage, first stage first.
//
//	# name: mine
//	# microbatches: 2
//	F0.0 F1.0 B0.0 B1.0 U0    # what follows a # is a comment
//	F0.0 B0.0 F1.0 B1.0 U0
//
// Every key of the header is optional. The default name is the name of the file; stages, chunks, microbatches and
// batches are counted from the actions; delay and depth are 0; and with delay 1 the default of stale is all
// microbatches. Without the key links the schedule contains computation only. Keys that are given must agree with the
// actions. A comment that looks like an unknown key is an error. A run repeats the schedule of a file (see Repeat): a
// file describes one batch, or several where batches overlap.

// headerNumber is a numeric key of the header and its value.
type headerNumber struct {
	key   string
	value *int
}

func (s *Schedule) header() []headerNumber {
	return []headerNumber{{"stages", &s.Stages}, {"chunks", &s.Chunks}, {"microbatches", &s.Microbatches}, {"batches", &s.Batches},
		{"delay", &s.Delay}, {"stale", &s.Stale}, {"depth", &s.Depth}}
}

// String is the schedule as text, which Parse reads.
func (s *Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# name: %s\n", s.Name)
	for _, h := range s.header() {
		if h.value == &s.Stale && s.Delay != 1 || h.value == &s.Depth && s.Depth == 0 {
			continue
		}
		fmt.Fprintf(&b, "# %s: %d\n", h.key, *h.value)
	}
	if s.Copies != nil {
		fmt.Fprintf(&b, "# links: %v\n", s.Copies)
	}
	for _, actions := range s.Actions {
		for i, a := range actions {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(a.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// namedCopy is a field of Copies and its name in a file.
type namedCopy struct {
	name string
	is   *bool
}

func (l *Copies) names() []namedCopy {
	return []namedCopy{{"tied", &l.Tied}, {"replica", &l.Replica}, {"copied", &l.Copied}}
}

// String lists the names of the fields that are set, or "none".
func (l *Copies) String() string {
	var text []string
	for _, n := range l.names() {
		if *n.is {
			text = append(text, n.name)
		}
	}
	if text == nil {
		return "none"
	}
	return strings.Join(text, " ")
}

// largestFile is in bytes: 16 per action.
const largestFile = 16 * maxActions

// Read reads a file that holds the text of a schedule. A file that is too large for one, such as /dev/zero, is an
// error.
func Read(path string) (*Schedule, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, largestFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > largestFile {
		return nil, fmt.Errorf("%s: found more than %d bytes, expected a schedule of fewer", path, largestFile)
	}
	return Parse(path, string(text))
}

// parser is the state of Parse.
type parser struct {
	Schedule
	file  string
	keys  map[string]int // the line of each key of the header
	lines []int          // the line of each stage
}

var headerText = regexp.MustCompile(`^#\s*([a-z_]+):\s*(.*?)\s*$`)

// Parse reads the text of a schedule. file is its name in errors. Parse checks that actions agree with the header;
// Validate checks that the schedule is sound.
func Parse(file, text string) (*Schedule, error) {
	p := &parser{file: file, keys: map[string]int{}}
	p.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	n := 0
	for line := range strings.Lines(text) {
		n++
		var err error
		if h := headerText.FindStringSubmatch(strings.TrimSpace(line)); h != nil {
			err = p.head(n, h[1], h[2])
		} else if actions, _, _ := strings.Cut(line, "#"); strings.TrimSpace(actions) != "" {
			err = p.stage(n, strings.Fields(actions))
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	return p.finish()
}

func (p *parser) head(n int, key, value string) error {
	if first, twice := p.keys[key]; twice {
		return fmt.Errorf("%s is given a second time, first in line %d", key, first)
	}
	if len(p.Actions) > 0 {
		return fmt.Errorf("%s is given after the first stage, expected before", key)
	}
	p.keys[key] = n
	switch key {
	case "name":
		p.Name = value
		return nil
	case "links":
		p.Copies = &Copies{}
		return p.Copies.parse(value)
	}
	var keys []string
	for _, h := range p.header() {
		if keys = append(keys, h.key); h.key != key {
			continue
		}
		v, err := strconv.Atoi(value)
		if err != nil || v < -1 || v > maxNumber+1 {
			return fmt.Errorf("%s: found %q, expected a number", key, value)
		}
		*h.value = v
		return nil
	}
	return fmt.Errorf("unknown key %q, expected name, %s or links", key, strings.Join(keys, ", "))
}

func (l *Copies) parse(text string) error {
	if text == "none" {
		return nil
	}
words:
	for _, word := range strings.Fields(text) {
		for _, n := range l.names() {
			if n.name == word {
				*n.is = true
				continue words
			}
		}
		return fmt.Errorf("links: found %q, expected none, or some of tied, replica, copied", word)
	}
	return nil
}

func (p *parser) stage(n int, texts []string) error {
	actions := make([]Action, len(texts))
	for i, text := range texts {
		a, err := ParseAction(text)
		if err != nil {
			return fmt.Errorf("stage %d: action %d: %w", len(p.Actions), i+1, err)
		}
		actions[i] = a
	}
	p.Actions, p.lines = append(p.Actions, actions), append(p.lines, n)
	return nil
}

// finish counts the numbers that the header omits, and checks the numbers that it gives.
func (p *parser) finish() (*Schedule, error) {
	if len(p.Actions) == 0 {
		return nil, fmt.Errorf("%s: found no actions, expected a line for each stage", p.file)
	}
	if n, given := p.keys["stages"]; given && p.Stages != len(p.Actions) {
		return nil, fmt.Errorf("%s:%d: stages: found %d, but actions of %d stages", p.file, n, p.Stages, len(p.Actions))
	}
	p.Stages = len(p.Actions)
	for _, c := range []struct {
		key   string
		value *int
		of    func(a Action) int
	}{
		{"chunks", &p.Chunks, func(a Action) int { return a.Chunk }},
		{"microbatches", &p.Microbatches, func(a Action) int { return a.Microbatch }},
		{"batches", &p.Batches, func(a Action) int { return a.Batch }},
	} {
		_, given := p.keys[c.key]
		for stage, actions := range p.Actions {
			for i, a := range actions {
				if !given {
					*c.value = max(*c.value, c.of(a)+1)
				} else if c.of(a) >= *c.value {
					return nil, fmt.Errorf("%s:%d: stage %d: action %d, %v, is beyond %s: %d in line %d",
						p.file, p.lines[stage], stage, i+1, a, c.key, *c.value, p.keys[c.key])
				}
			}
		}
	}
	if _, given := p.keys["stale"]; !given && p.Delay == 1 {
		p.Stale = p.Microbatches
	}
	return &p.Schedule, nil
}
