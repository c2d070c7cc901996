package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/compute"
)

type selftestCommand struct {
	Device string        `help:"Device to test: cpu:0, webgpu:0, vulkan:0." placeholder:"NAME"`
	Filter string        `help:"Test only ops whose name contains this." placeholder:"TEXT"`
	Quick  bool          `help:"Test each case with one kernel instead of every variant, and fewer random graphs."`
	Within time.Duration `help:"Start no further tests after this time, and list those that are omitted." placeholder:"DURATION"`
	JSON   bool          `help:"Print a JSON object."`
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
	Tolerance  float64  `json:"tolerance"` // of the case with the worst error relative to its tolerance
	OK         bool     `json:"ok"`
	Failures   []string `json:"failures,omitempty"`
}

type selftestReport struct {
	Device  device.Info    `json:"device"`
	OK      bool           `json:"ok"`
	Lines   []selftestLine `json:"ops"`
	Omitted []string       `json:"omitted,omitempty"` // for lack of time: see --within
}

func (c *selftestCommand) Run(a *app) error {
	dev, err := a.openDevice(c.Device)
	if err != nil {
		return usererror.New(err)
	}
	defer dev.Close()
	r := selftestReport{Device: dev.Info(), OK: true}
	s := &status{app: a, silent: c.JSON}
	began := time.Now()
	suites := c.suites(func() bool { return c.Within > 0 && time.Since(began) > c.Within })
	for i, suite := range suites {
		if err := a.ctx.Err(); err != nil {
			s.clear()
			return err
		}
		s.say("%d of %d: %s", i+1, len(suites), suite.name)
		results, complete := suite.run(dev)
		if !complete {
			r.Omitted = append(r.Omitted, suite.name)
		}
		if len(results) > 0 {
			l := summarise(suite.name, results)
			r.Lines, r.OK = append(r.Lines, l), r.OK && l.OK
		}
	}
	s.clear()
	if len(r.Lines) == 0 {
		return usererror.Errorf("--filter: no op's name contains %q", c.Filter)
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

// suite is the tests behind one row of the table. Its run reports whether it is complete.
type suite struct {
	name string
	run  func(dev device.Device) (results []compute.Result, complete bool)
}

// suites lists the tests. Those that have not begun when the time has expired are omitted.
func (c *selftestCommand) suites(expired func() bool) []suite {
	check := compute.Check
	chains := 3 * compute.RandomGraphs
	once := func(dev device.Device, tasks []compute.Task) []compute.Result {
		return compute.CheckOnce(dev, tasks, nil)
	}
	if c.Quick {
		chains, check = 24, once
	}
	whole := func(run func(device.Device) []compute.Result) func(device.Device) ([]compute.Result, bool) {
		return func(dev device.Device) ([]compute.Result, bool) {
			if expired() {
				return nil, false
			}
			return run(dev), true
		}
	}
	each := func(tasks []compute.Task, check func(device.Device, []compute.Task) []compute.Result) func(device.Device) ([]compute.Result,
		bool) {
		return func(dev device.Device) (results []compute.Result, complete bool) {
			if c.Within == 0 { // together: kernels of several tasks compile at once
				return check(dev, tasks), true
			}
			for _, task := range tasks {
				if expired() {
					return results, false
				}
				results = append(results, check(dev, []compute.Task{task})...)
			}
			return results, true
		}
	}
	all := []suite{{"loops", whole(compute.CheckLoops)}, {"16-bit floats", whole(compute.CheckConversions)}}
	for _, o := range op.Catalogue() {
		if tasks := compute.Cases(o); len(tasks) > 0 {
			all = append(all, suite{o.Name(), each(tasks, check)})
		}
	}
	all = append(all, suite{"graphs", each(compute.Graphs(), check)}, suite{"random graphs", each(compute.Chains(chains), once)},
		suite{"random graphs of 16-bit floats", each(compute.MixedChains(min(chains, compute.RandomMixedGraphs)), once)})
	return slices.DeleteFunc(all, func(s suite) bool { return !strings.Contains(s.name, c.Filter) })
}

func summarise(name string, results []compute.Result) selftestLine {
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
	a.printf("%s  %s (%s) %s\n\n", r.Device.Name, r.Device.Hardware(), r.Device.Kind, r.Device.Driver)
	rows := [][]string{{"OP", "CASES", "VARIANTS", "RUNS", "WORST ERROR", "TOLERANCE", ""}}
	failed := 0
	for _, l := range r.Lines {
		verdict := "ok"
		if !l.OK {
			verdict = "WRONG"
			failed++
		}
		rows = append(rows, []string{l.Op, fmt.Sprint(l.Cases), fmt.Sprint(len(l.Candidates)), fmt.Sprint(l.Runs),
			fmt.Sprintf("%.2g", l.Error), fmt.Sprintf("%.2g", l.Tolerance), verdict})
	}
	a.table(rows)
	if len(r.Omitted) > 0 {
		a.printf("Omitted for lack of time: %s\n", strings.Join(r.Omitted, ", "))
	}
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
