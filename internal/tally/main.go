// Command tally reads the output of go test -json and prints what go test does without -json: a line for each package, and
// the output of those that fail. Then it says how many cases ran, and why others did not.
//
//	go test -json ./... | go run ./internal/tally [-rest COMMAND]
//
// A case is a test, or what a test reports by tier.Count. It exits with 1 if a package fails.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/tier"
)

func main() {
	rest := flag.String("rest", "", "the command that runs the cases left out")
	flag.Parse()
	t, err := read(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
	t.print(os.Stdout, *rest)
	if t.failed {
		os.Exit(1)
	}
}

// event is a line of go test -json: see go doc test2json. Builds have an ImportPath instead of a Package.
type event struct {
	Action, Package, ImportPath, Test, Output, Key, Value string
	Elapsed                                               float64
}

// totals are the counts of all packages.
type totals struct {
	ran, all int
	skipped  map[string]int // cases by the reason that their test gives
	failed   bool
}

// pack is a package whose tests run.
type pack struct {
	output []string
	tests  map[string]*test
}

// test is a test of the first level.
type test struct {
	output   []string // its own and that of its subtests
	ran, all int
	counted  bool   // by the test itself
	last     string // line of its own output
}

// read copies from go test to out as packages end.
func read(from io.Reader, out io.Writer) (*totals, error) {
	sum := &totals{skipped: map[string]int{}}
	packs := map[string]*pack{}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line) // of the go command itself
			} else if err := sum.add(packs, e, out); err != nil {
				return nil, err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if len(packs) > 0 {
		return nil, fmt.Errorf("go test ended before %s", strings.Join(slices.Sorted(maps.Keys(packs)), ", "))
	}
	return sum, nil
}

func (s *totals) add(packs map[string]*pack, e event, out io.Writer) error {
	switch e.Action {
	case "build-output":
		fmt.Fprint(out, e.Output)
		return nil
	case "build-fail":
		s.failed = true
		return nil
	}
	p := packs[e.Package]
	if p == nil {
		p = &pack{tests: map[string]*test{}}
		packs[e.Package] = p
	}
	if e.Test == "" {
		switch e.Action {
		case "output":
			p.output = append(p.output, e.Output)
		case "pass", "skip", "fail":
			s.failed = s.failed || e.Action == "fail"
			p.print(out, e.Action)
			delete(packs, e.Package)
		}
		return nil
	}
	return s.addTest(p, e)
}

func (s *totals) addTest(p *pack, e event) error {
	name, _, sub := strings.Cut(e.Test, "/")
	t := p.tests[name]
	if t == nil {
		t = &test{}
		p.tests[name] = t
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		if text := strings.TrimSpace(e.Output); !sub && !strings.HasPrefix(text, "---") && !strings.HasPrefix(text, "===") {
			t.last = text
		}
	case "attr":
		if e.Key != tier.Cases {
			break
		}
		var ran, all int
		if _, err := fmt.Sscanf(e.Value, "%d of %d", &ran, &all); err != nil || ran < 0 || ran > all {
			return fmt.Errorf("%s of %s: found %s %q, expected two counts", e.Test, e.Package, e.Key, e.Value)
		}
		t.ran, t.all, t.counted = t.ran+ran, t.all+all, true
	case "pass", "fail", "skip":
		if sub {
			break
		}
		if !t.counted {
			t.all = 1
			if e.Action != "skip" {
				t.ran = 1
			}
		}
		s.ran, s.all = s.ran+t.ran, s.all+t.all
		if t.ran < t.all {
			s.skipped[t.reason()] += t.all - t.ran
		}
		if e.Action != "fail" {
			delete(p.tests, name)
		}
	}
	return nil
}

// reason says why cases did not run: for a skipped test it is what the test printed last, without the place in its source.
func (t *test) reason() string {
	if t.counted {
		return tier.Left
	}
	_, text, _ := strings.Cut(t.last, ".go:")
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

func (s *totals) print(out io.Writer, rest string) {
	fmt.Fprintf(out, "ran %d of %d cases", s.ran, s.all)
	if rest != "" {
		fmt.Fprintf(out, "; %s runs the rest", rest)
	}
	fmt.Fprintln(out)
	for _, why := range slices.Sorted(maps.Keys(s.skipped)) {
		if why != tier.Left || rest == "" {
			fmt.Fprintf(out, "not run: %d: %s\n", s.skipped[why], why)
		}
	}
}
