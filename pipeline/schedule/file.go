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

// The text of a schedule: comment lines that say what it is, then a line of actions for each stage, first stage first.
//
//	# name: mine
//	# microbatches: 2
//	F0.0 F1.0 B0.0 B1.0 U0    # what follows a # is a comment
//	F0.0 B0.0 F1.0 B1.0 U0
//
// Of the header everything may be left out: name is then the file's, stages, chunks, microbatches and batches are counted from the
// lines, delay is 0, and without links the schedule is of computation only. What is said must agree with the lines; a comment
// that begins like a key that does not exist is a mistake. As the schedule of a run a file is a pattern that is repeated (see
// Repeat): one batch, or several where batches overlap.

// headerNumber is a key of the header, and where its value is.
type headerNumber struct {
	key   string
	value *int
}

func (s *Schedule) header() []headerNumber {
	return []headerNumber{{"stages", &s.Stages}, {"chunks", &s.Chunks}, {"microbatches", &s.Microbatches}, {"batches", &s.Batches}, {"delay", &s.Delay}}
}

// String is the schedule as text, which Parse reads.
func (s *Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# name: %s\n", s.Name)
	for _, h := range s.header() {
		fmt.Fprintf(&b, "# %s: %d\n", h.key, *h.value)
	}
	if s.Links != nil {
		fmt.Fprintf(&b, "# links: %v\n", s.Links)
	}
	for _, line := range s.Lines {
		for i, a := range line {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(a.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// namedLink is what a text calls one of Links.
type namedLink struct {
	name string
	is   *bool
}

func (l *Links) names() []namedLink {
	return []namedLink{{"tied", &l.Tied}, {"replica", &l.Replica}, {"copied", &l.Copied}}
}

// String is the links' names, or none.
func (l *Links) String() string {
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

// largestFile is in bytes: 16 an action.
const largestFile = 16 * maxActions

// Read reads a file that holds the text of a schedule. What never ends, as /dev/zero, is an error, not all of memory.
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

// parser is what is known while a text is read.
type parser struct {
	Schedule
	file  string
	said  map[string]int // keys of the header: in which line of the text
	where []int          // in which line of the text each stage is
}

var headerText = regexp.MustCompile(`^#\s*([a-z_]+):\s*(.*?)\s*$`)

// Parse reads the text of a schedule; file is what errors call it. What is read agrees with its header; whether it is sound, Validate
// says.
func Parse(file, text string) (*Schedule, error) {
	p := &parser{file: file, said: map[string]int{}}
	p.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	n := 0
	for line := range strings.Lines(text) {
		n++
		var err error
		if h := headerText.FindStringSubmatch(strings.TrimSpace(line)); h != nil {
			err = p.head(n, h[1], h[2])
		} else if actions, _, _ := strings.Cut(line, "#"); strings.TrimSpace(actions) != "" {
			err = p.line(n, strings.Fields(actions))
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	return p.finish()
}

func (p *parser) head(n int, key, value string) error {
	if first, twice := p.said[key]; twice {
		return fmt.Errorf("%s is said a second time, first in line %d", key, first)
	}
	if len(p.Lines) > 0 {
		return fmt.Errorf("%s is said after the first stage, expected before", key)
	}
	p.said[key] = n
	switch key {
	case "name":
		p.Name = value
		return nil
	case "links":
		p.Links = &Links{}
		return p.Links.parse(value)
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

func (l *Links) parse(text string) error {
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

func (p *parser) line(n int, actions []string) error {
	line := make([]Action, len(actions))
	for i, text := range actions {
		a, err := ParseAction(text)
		if err != nil {
			return fmt.Errorf("stage %d: action %d: %w", len(p.Lines), i+1, err)
		}
		line[i] = a
	}
	p.Lines, p.where = append(p.Lines, line), append(p.where, n)
	return nil
}

// finish counts what the header does not say, and compares what it does.
func (p *parser) finish() (*Schedule, error) {
	if len(p.Lines) == 0 {
		return nil, fmt.Errorf("%s: found no line of actions, expected one for each stage", p.file)
	}
	if n, said := p.said["stages"]; said && p.Stages != len(p.Lines) {
		return nil, fmt.Errorf("%s:%d: stages: found %d, but %d lines of actions", p.file, n, p.Stages, len(p.Lines))
	}
	p.Stages = len(p.Lines)
	for _, c := range []struct {
		key   string
		value *int
		of    func(a Action) int
	}{
		{"chunks", &p.Chunks, func(a Action) int { return a.Chunk }},
		{"microbatches", &p.Microbatches, func(a Action) int { return a.Microbatch }},
		{"batches", &p.Batches, func(a Action) int { return a.Batch }},
	} {
		_, said := p.said[c.key]
		for stage, line := range p.Lines {
			for i, a := range line {
				if !said {
					*c.value = max(*c.value, c.of(a)+1)
				} else if c.of(a) >= *c.value {
					return nil, fmt.Errorf("%s:%d: stage %d: action %d, %v, is beyond the %s that line %d says: %d", p.file, p.where[stage], stage, i+1, a, c.key, p.said[c.key], *c.value)
				}
			}
		}
	}
	return &p.Schedule, nil
}
