package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
)

// event is a line of go test -json: see go doc test2json. Builds have an ImportPath instead of a Package.
type event struct {
	Action, Package, ImportPath, Test, Output, Key, Value string
}

// reader prints packages as they end, and counts their tests.
type reader struct {
	counts *counts
	out    io.Writer
	packs  map[string]*pack // those that run
	failed bool
}

// pack is a package whose tests run.
type pack struct {
	output []string
	tests  map[string]*test
}

// test is a test of the first level.
type test struct {
	output  []string // of the test and of its subtests
	count   count
	counted map[string]int    // cases that ran, by the test or subtest that counts them
	last    map[string]string // line of output of the test and of each subtest
}

// read copies from go test to out, and adds to the counts. It reports whether a package failed.
func read(in io.Reader, out io.Writer, c *counts) (failed bool, err error) {
	r := reader{counts: c, out: out, packs: map[string]*pack{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line) // of the go command itself
			} else if err := r.add(e); err != nil {
				return false, err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
	}
	if len(r.packs) > 0 {
		return false, fmt.Errorf("go test ended before %s", strings.Join(slices.Sorted(maps.Keys(r.packs)), ", "))
	}
	return r.failed, nil
}

func (r *reader) add(e event) error {
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
		return nil
	case "build-fail":
		r.failed = true
		return nil
	}
	p := r.packs[e.Package]
	if p == nil {
		p = &pack{tests: map[string]*test{}}
		r.packs[e.Package] = p
	}
	if e.Test != "" {
		return r.addTest(p, e)
	}
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
	case "pass", "skip", "fail":
		r.failed = r.failed || e.Action == "fail"
		p.print(r.out, e.Action)
		delete(r.packs, e.Package)
	}
	return nil
}

func (r *reader) addTest(p *pack, e event) error {
	name, _, sub := strings.Cut(e.Test, "/")
	t := p.tests[name]
	if t == nil {
		t = &test{count: count{Why: map[string]int{}}, counted: map[string]int{}, last: map[string]string{}}
		p.tests[name] = t
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		if text := strings.TrimSpace(e.Output); !strings.HasPrefix(text, "---") && !strings.HasPrefix(text, "===") {
			t.last[e.Test] = text
		}
	case "attr":
		if e.Key != tier.Cases {
			break
		}
		var ran, all int
		if _, err := fmt.Sscanf(e.Value, "%d of %d", &ran, &all); err != nil || ran < 0 || ran > all {
			return fmt.Errorf("%s of %s: found %s %q, expected two counts", e.Test, e.Package, e.Key, e.Value)
		}
		t.count.add(ran, all, tier.Left)
		t.counted[e.Test] += ran
	case "pass", "fail", "skip":
		ran, counted := t.counted[e.Test]
		switch {
		case e.Action == "skip" && counted: // with all that it counted
			t.count.add(-ran, 0, t.reason(e.Test))
		case e.Action == "skip":
			t.count.add(0, 1, t.reason(e.Test))
		case !sub && len(t.counted) == 0:
			t.count.add(1, 1, "")
		}
		if sub {
			break
		}
		r.counts.set(e.Package, name, t.count)
		if e.Action != "fail" {
			delete(p.tests, name)
		}
	}
	return nil
}

// reason says why a test was skipped: it is what the test printed last, without the place in its source.
func (t *test) reason(name string) string {
	_, text, _ := strings.Cut(t.last[name], ".go:")
	_, text, _ = strings.Cut(text, ": ")
	return text
}

// print writes the line of a package that ended. Before it come the tests that failed, or never ended.
func (p *pack) print(out io.Writer, action string) {
	if action == "fail" {
		for _, name := range slices.Sorted(maps.Keys(p.tests)) {
			fmt.Fprint(out, strings.Join(p.tests[name].output, ""))
		}
		fmt.Fprint(out, strings.Join(p.output, ""))
		return
	}
	for _, line := range p.output {
		if strings.HasPrefix(line, "ok ") {
			fmt.Fprint(out, line)
		}
	}
}
