package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/hookbench"
	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

type hookBenchCommand struct {
	moduleFlags
	Seconds float64 `help:"Seconds to measure each hook." default:"1"`
}

func (c *hookBenchCommand) Help() string {
	return `Documents are the paragraphs of --text. A figure beyond its limit is marked SLOW; it is not an error.

Example:
  gpupipe hook bench examples/hooks/quality_filter.wasm --seconds 3`
}

// measured is a figure and its limit.
type measured struct {
	What  string  `json:"what"`
	Hook  string  `json:"hook,omitempty"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Limit float64 `json:"limit"`
	Least bool    `json:"limit_is_least"` // the limit is a minimum, else a maximum
	OK    bool    `json:"ok"`
	Note  string  `json:"note,omitempty"`
}

// Limits of the figures. The limits of a call and a round trip belong to the sandbox and are in package bench.
const (
	mostRatio = 1.6 // the time of a metered call over the time of an unmetered one
	leastMBps = 50  // the throughput of data hooks on all cores
)

func figure(what, hook string, value float64, unit string, limit float64, least bool) measured {
	ok := value <= limit
	if least {
		ok = value >= limit
	}
	return measured{What: what, Hook: hook, Value: value, Unit: unit, Limit: limit, Least: least, OK: ok}
}

func (c *hookBenchCommand) Run(a *app) error {
	if !(c.Seconds > 0 && c.Seconds <= 3600) {
		return usererror.Errorf("--seconds: found %v, expected a number above 0 and at most 3600", graph.Real(c.Seconds))
	}
	if err := c.check(); err != nil {
		return err
	}
	host, err := hook.NewHost("")
	if err != nil {
		return err
	}
	defer host.Close()
	long := time.Duration(c.Seconds * float64(time.Second))
	var all []measured
	err = c.each(a, host, func(m *hook.Module) error {
		figures, err := c.figures(a, host, m, long)
		all = append(all, figures...)
		return usererror.New(err)
	})
	if err != nil {
		return err
	}
	sandbox, err := hookbench.Run(a.ctx, long)
	if err != nil {
		return err
	}
	all = append([]measured{
		figure("an empty call", "", float64(sandbox.Call.Nanoseconds())/1e3, "us", float64(hookbench.MostCall.Nanoseconds())/1e3, false),
		figure("4 MB in and out", "", float64(sandbox.RoundTrip.Nanoseconds())/1e6, "ms",
			float64(hookbench.MostRoundTrip.Nanoseconds())/1e6, false),
	}, all...)
	return c.print(a, all)
}

// figures measures a hook: metered to unmetered, and its throughput.
func (c *hookBenchCommand) figures(a *app, host *hook.Host, m *hook.Module, long time.Duration) (all []measured, err error) {
	bin, err := hook.ReadFile(c.File)
	if err != nil {
		return nil, err
	}
	free, err := host.LoadBytes(c.spec(a, m.Hook, true), bin)
	if err != nil {
		return nil, err
	}
	defer free.Close()
	metered, err := c.trials(a, m, 1)
	if err != nil {
		return nil, err
	}
	unmetered, err := c.trials(a, free, 1)
	if err != nil {
		return nil, err
	}
	for i, t := range metered {
		with, without, err := race(t, unmetered[i], long, c.endless(a, t))
		if err != nil {
			return nil, err
		}
		ratio := figure("metered to unmetered", t.name, with.Seconds()/without.Seconds(), "", mostRatio, false)
		ratio.Note = fmt.Sprintf("%s a call, %s unmetered", inSeconds(with.Seconds()/float64(t.calls)),
			inSeconds(without.Seconds()/float64(t.calls)))
		all = append(all, ratio)
	}
	if metered[0].bytes == 0 {
		return all, nil
	}
	parallel, err := c.trials(a, m, runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	took, _, err := race(parallel[0], trial{}, long, nil)
	return append(all, figure(fmt.Sprintf("data on %d cores", runtime.GOMAXPROCS(0)), m.Hook,
		float64(parallel[0].bytes)/1e6/took.Seconds(), "MB/s", leastMBps, true)), err
}

// race runs two trials alternately for a time, and returns the shortest run of each. The first is metered. The second
// is unmetered and optional; if one of its runs does not end, race calls endless.
func race(one, two trial, long time.Duration, endless func()) (a, b time.Duration, err error) {
	first, err := one.begin()
	if err != nil {
		return 0, 0, err
	}
	defer first.close()
	var second *guest
	began := time.Now()
	for n := 0; n < 3 || time.Since(began) < long; n++ {
		if n == 1 {
			began = time.Now()
		}
		if two.begin == nil {
			if a, err = faster(a, n, first); err != nil {
				return 0, 0, err
			}
			continue
		}
		if a, err = alone(func() (time.Duration, error) { return faster(a, n, first) }); err != nil {
			return 0, 0, err
		}
		if second == nil {
			if second, err = two.begin(); err != nil {
				return 0, 0, err
			}
			defer second.close()
		}
		if b, err = guarded(endless, func() (time.Duration, error) { return faster(b, n, second) }); err != nil {
			return 0, 0, err
		}
	}
	return a, b, nil
}

// mostUnmetered is the longest time that a run without metering may take: about a hundred times the expected time.
const mostUnmetered = 20 * time.Second

// alone runs a function without garbage collection, which would stop the program until an unmetered call returns. The
// metered run that is compared with it runs without, too.
func alone(run func() (time.Duration, error)) (time.Duration, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	return run()
}

// guarded is alone for a run that nothing can stop.
func guarded(endless func(), run func() (time.Duration, error)) (time.Duration, error) {
	defer time.AfterFunc(mostUnmetered, endless).Stop()
	return alone(run)
}

// endless ends the process: the module detects that it is not metered, and loops.
func (c *hookBenchCommand) endless(a *app, t trial) func() {
	return func() {
		fmt.Fprintf(a.stderr, "gpupipe: hook %s: %s: ends with metering, but not without\n", c.File, t.name)
		os.Exit(exitMistake)
	}
}

// faster returns the shorter of best and the time of the nth run. The first run is a warm-up.
func faster(best time.Duration, n int, s *guest) (time.Duration, error) {
	began := time.Now()
	_, err := s.run(n)
	if t := time.Since(began); n == 1 || n > 1 && t < best {
		best = t
	}
	return best, err
}

func (c *hookBenchCommand) print(a *app, all []measured) error {
	if c.JSON {
		return a.printJSON(map[string]any{"file": c.File, "figures": all})
	}
	rows := [][]string{{"HOOK", "MEASURED", "FOUND", "LIMIT", "", ""}}
	for _, m := range all {
		limit := fmt.Sprintf("%s %.4g %s", map[bool]string{true: ">=", false: "<="}[m.Least], m.Limit, m.Unit)
		rows = append(rows, []string{m.Hook, m.What, fmt.Sprintf("%.3g %s", m.Value, m.Unit), limit,
			map[bool]string{true: "ok", false: "SLOW"}[m.OK], m.Note})
	}
	a.table(table.Narrow(rows, a.width(), 0, 1, 2, 3, 4))
	return nil
}
