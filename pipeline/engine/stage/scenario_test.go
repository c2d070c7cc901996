package stage

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the results of the scenarios to testdata; review the difference before committing it")

// TestScenarios replays the files of testdata: commands, one per line, then "----" and what they print. A file is one
// scenario.
//
//	actions F0.0 U0 …           actions by hand, for the next `new actions`
//	new 2bw stages=2 stage=0 …  a machine (see scenario.config); prints its actions
//	next                        prints the effects
//	run                         next, and the device finishes all, until nothing can be done
//	receive activation 0.1 virtual-stage=1 from=0, receive norms 1 from=2
//	finish F0.0 B0.0, allow 1, limit 2, wants, done, roles, state
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			found := replay(string(text))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(found), 0o644))
			}
			assert.Equal(t, string(text), found)
		})
	}
}

// replay is the text of a file with the expectations that its commands give. Expectations end with an empty line.
func replay(text string) string {
	var s scenario
	var out strings.Builder
	expected := false
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case line == "":
			expected = false
		case expected:
			continue
		case line == "----":
			expected = true
			fmt.Fprintf(&out, "----\n%s", s.printed.String())
			s.printed.Reset()
			continue
		case !strings.HasPrefix(line, "#"):
			s.try(strings.Fields(line))
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

type scenario struct {
	m       *Machine
	actions []schedule.Action
	printed strings.Builder
}

func (s *scenario) print(format string, args ...any) { fmt.Fprintf(&s.printed, format+"\n", args...) }

// try does a command and prints its panic.
func (s *scenario) try(words []string) {
	defer func() {
		if r := recover(); r != nil {
			s.print("panic: %v", r)
		}
	}()
	if err := s.do(words[0], words[1:]); err != nil {
		s.print("error: %v", err)
	}
}

func (s *scenario) do(command string, words []string) error {
	switch command {
	case "actions":
		s.actions = append(s.actions, actions(words)...)
		return nil
	case "new":
		return s.start(words)
	case "next":
		for _, e := range s.m.Next() {
			s.print("%v", e)
		}
		return nil
	case "run":
		for effects := s.m.Next(); len(effects) > 0 || len(s.m.queue) > 0; effects = s.m.Next() {
			for _, e := range effects {
				s.print("%v", e)
			}
			for len(s.m.queue) > 0 {
				if err := s.m.Finished(s.m.queue[0]); err != nil {
					return err
				}
			}
		}
		return nil
	case "finish":
		for _, a := range actions(words) {
			if err := s.m.Finished(a); err != nil {
				return err
			}
		}
		return nil
	case "receive":
		return s.m.Received(message(words))
	case "allow":
		s.m.Allow(number(words[0]))
		return nil
	case "limit":
		s.m.Limit(number(words[0]))
		return nil
	case "wants":
		batch, wants := s.m.WantsBatch()
		s.print("batch %d %v", batch, wants)
		return nil
	case "done":
		s.print("%v", s.m.Done())
		return nil
	case "roles":
		s.print("%+v", s.m.Roles())
		return nil
	case "state":
		s.print("%s", s.m.State())
		return nil
	}
	return fmt.Errorf("no command %q", command)
}

// start makes a machine as `new` says: its schedule, then stages, stage, microbatches, batches, chunks (of the
// schedule); replica, from, slots (2), queue (1), delay (the schedule's), owners (all other stages), copies-from,
// copies-to; tied, copied, replicated (schedule.Copies); ask (nothing is allowed at first).
func (s *scenario) start(words []string) error {
	option := func(name, otherwise string) string {
		for _, w := range words[1:] {
			if w == name {
				return "true"
			}
			if value, ok := strings.CutPrefix(w, name+"="); ok {
				return value
			}
		}
		return otherwise
	}
	integer := func(name string, otherwise int) int { return number(option(name, strconv.Itoa(otherwise))) }
	ranks := func(name string) (ranks []int) {
		for _, w := range strings.FieldsFunc(option(name, ""), func(r rune) bool { return r == ',' }) {
			ranks = append(ranks, number(w))
		}
		return ranks
	}
	c := Config{Pipeline: Pipeline{Stages: integer("stages", 1), Chunks: integer("chunks", 1), Microbatches: integer("microbatches", 1)},
		Stage: integer("stage", 0), Replica: integer("replica", 0), Slots: integer("slots", 2), QueueDepth: integer("queue", 1),
		From:  integer("from", 0),
		Peers: Peers{Owners: ranks("owners"), CopiesFrom: ranks("copies-from"), CopiesTo: ranks("copies-to")}}
	if option("owners", "") == "" {
		for l := range c.Pipeline.Stages {
			if l != c.Stage {
				c.Peers.Owners = append(c.Peers.Owners, l)
			}
		}
	}
	if words[0] == "actions" {
		c.Actions, c.Delay, s.actions = slices.Values(s.actions), integer("delay", 0), nil
		c.Stale = integer("stale", c.Delay*c.Pipeline.Microbatches)
	} else {
		g, err := schedule.New(words[0], schedule.Options{Stages: c.Pipeline.Stages, Microbatches: c.Pipeline.Microbatches,
			Chunks: c.Pipeline.Chunks, Stale: integer("stale", 0), Batches: integer("batches", 1)})
		if err != nil {
			return err
		}
		g, err = g.Communicate(schedule.Copies{Tied: option("tied", "") != "", Copied: option("copied", "") != "",
			Replica: option("replicated", "") != ""})
		if err != nil {
			return err
		}
		c.Actions, c.Delay, c.Stale = g.Actions(c.Stage), integer("delay", g.Head().Delay), g.Head().Stale
	}
	c.Roles = Roles{Older: 0, Newest: c.Delay, Gradients: 1 + c.Delay}
	m, err := New(c)
	if err != nil {
		return err
	}
	if s.m = m; option("ask", "") == "" {
		m.Allow(math.MaxInt)
	}
	if words[0] != "actions" {
		var text []string
		for a := range c.Actions {
			text = append(text, a.String())
		}
		for row := range slices.Chunk(text, 24) {
			s.print("%s", strings.Join(row, " "))
		}
	}
	return nil
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func actions(words []string) (as []schedule.Action) {
	for _, w := range words {
		a, err := schedule.ParseAction(w)
		if err != nil {
			panic(err)
		}
		as = append(as, a)
	}
	return as
}

// message reads "activation 0.1 virtual-stage=1 from=0" and "norms 1 from=2".
func message(words []string) (msg Message) {
	msg.Kind = MessageKind(slices.Index(messageKinds[:], words[0]))
	if microbatch, batch, ok := strings.Cut(words[1], "."); ok {
		msg.Microbatch, msg.Batch = number(microbatch), number(batch)
	} else {
		msg.Batch = number(words[1])
	}
	for _, w := range words[2:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "virtual-stage":
			msg.VirtualStage = number(value)
		case "from":
			msg.From = number(value)
		default:
			panic("no such field: " + w)
		}
	}
	return msg
}
