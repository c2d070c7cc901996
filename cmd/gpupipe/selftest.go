package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest"
)

type selftestCommand struct {
	Device string `help:"Device to test: webgpu:0, vulkan:0."`
	Filter string `help:"Test only ops whose name contains this." placeholder:"TEXT"`
	Quick  bool   `help:"Test each case with one kernel instead of every variant, and fewer random graphs."`
	JSON   bool   `help:"Print a JSON object."`
}

func (c *selftestCommand) Help() string {
	return `Computes every case of every op with every kernel, graphs whose ops fuse, long loops and every 16-bit float on a device, and compares
the results with float64 on the CPU. Errors are relative to the largest magnitude of a result. Exits with 1 if anything is wrong.

Examples:
  gpupipe selftest --device vulkan:0
  gpupipe selftest --quick --filter matmul --json`
}

var errSelftest = errors.New("the device computes wrong results: update its driver, or choose another device")

// selftestLine sums up the results of one op.
type selftestLine struct {
	Op         string   `json:"op"`
	Cases      int      `json:"cases"`
	Candidates []string `json:"candidates"`
	Runs       int      `json:"runs"`
	Error      float64  `json:"worst_error"`
	Tolerance  float64  `json:"tolerance"` // that of the case with the worst error in relation to it
	OK         bool     `json:"ok"`
	Failures   []string `json:"failures,omitempty"`
}

type selftestReport struct {
	Device device.Info    `json:"device"`
	OK     bool           `json:"ok"`
	Lines  []selftestLine `json:"ops"`
}

func (c *selftestCommand) Run(a *app) error {
	dev, err := a.openDevice(c.Device)
	if err != nil {
		return usererror.New(err)
	}
	defer dev.Close()
	r := selftestReport{Device: dev.Info(), OK: true}
	s := &status{app: a, silent: c.JSON}
	suites := c.suites()
	for i, suite := range suites {
		if err := a.ctx.Err(); err != nil {
			s.clear()
			return err
		}
		s.say("%d of %d: %s", i+1, len(suites), suite.name)
		l := summarise(suite.name, suite.run(dev))
		r.Lines, r.OK = append(r.Lines, l), r.OK && l.OK
	}
	s.clear()
	if len(r.Lines) == 0 {
		return usererror.New(fmt.Errorf("--filter: no op's name contains %q", c.Filter))
	}
	if c.JSON {
		err = a.printJSON(r)
	} else {
		r.print(a)
	}
	if err == nil && !r.OK {
		err = errSelftest
	}
	return err
}

// suite is the tests behind one row of the table.
type suite struct {
	name string
	run  func(dev device.Device) []devicetest.Result
}

func (c *selftestCommand) suites() []suite {
	check := devicetest.Check
	chains := devicetest.RandomGraphs
	if c.Quick {
		chains = 24
		check = func(dev device.Device, tasks []devicetest.Task) []devicetest.Result {
			return devicetest.CheckOnce(dev, tasks, nil)
		}
	}
	all := []suite{{"loops", devicetest.CheckLoops}, {"16-bit floats", devicetest.CheckConversions}}
	for _, o := range graph.Catalogue() {
		if tasks := devicetest.Cases(o); len(tasks) > 0 {
			all = append(all, suite{o.Name(), func(dev device.Device) []devicetest.Result { return check(dev, tasks) }})
		}
	}
	all = append(all, suite{"graphs", func(dev device.Device) []devicetest.Result { return check(dev, devicetest.Graphs()) }},
		suite{"random graphs", func(dev device.Device) []devicetest.Result {
			return devicetest.CheckOnce(dev, devicetest.Chains(chains), nil)
		}},
		suite{"random graphs of 16-bit floats", func(dev device.Device) []devicetest.Result {
			return devicetest.CheckOnce(dev, devicetest.MixedChains(min(chains, devicetest.RandomMixedGraphs)), nil)
		}})
	return slices.DeleteFunc(all, func(s suite) bool { return !strings.Contains(s.name, c.Filter) })
}

func summarise(name string, results []devicetest.Result) selftestLine {
	l := selftestLine{Op: name, Runs: len(results), OK: true}
	cases, worst := map[string]bool{}, -1.0
	for _, r := range results {
		cases[r.Case] = true
		if r.Candidate != "" && !slices.Contains(l.Candidates, r.Candidate) {
			l.Candidates = append(l.Candidates, r.Candidate)
		}
		if !r.OK() {
			l.OK = false
			l.Failures = append(l.Failures, fmt.Sprintf("%s (%s): %s", r.Case, r.Candidate, r.Failure))
			continue
		}
		if r.Error/r.Tolerance > worst {
			worst, l.Error, l.Tolerance = r.Error/r.Tolerance, r.Error, r.Tolerance
		}
	}
	l.Cases = len(cases)
	return l
}

func (r selftestReport) print(a *app) {
	a.printf("%s  %s (%s) %s\n\n", r.Device.Name, r.Device.Adapter, r.Device.Kind, r.Device.Driver)
	rows := [][]string{{"OP", "CASES", "VARIANTS", "RUNS", "WORST ERROR", "TOLERANCE", ""}}
	failed := 0
	for _, l := range r.Lines {
		verdict := "ok"
		if !l.OK {
			verdict = "WRONG"
			failed++
		}
		rows = append(rows, []string{l.Op, fmt.Sprint(l.Cases), fmt.Sprint(len(l.Candidates)), fmt.Sprint(l.Runs), fmt.Sprintf("%.2g", l.Error),
			fmt.Sprintf("%.2g", l.Tolerance), verdict})
	}
	a.table(rows)
	for _, l := range r.Lines {
		for i, f := range l.Failures {
			if i == 5 {
				a.printf("%s: %d more\n", l.Op, len(l.Failures)-i)
				break
			}
			a.printf("%s %s\n", l.Op, strings.SplitN(f, "\n", 2)[0])
		}
	}
	if failed == 0 {
		a.printf("\nAll results are right.\n")
	} else {
		a.printf("\n%d of %d are wrong.\n", failed, len(r.Lines))
	}
}
