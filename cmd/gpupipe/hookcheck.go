package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

type hookCheckCommand struct{ moduleFlags }

func (c *hookCheckCommand) Help() string {
	return `Runs each hook on sample data, twice and in a second instance. Prints its result, whether the result is reproducible, and how much of its
limits a call takes.

Example:
  gpupipe hook check examples/hooks/focal_loss.wasm --config '{"gamma": 2}'`
}

// checked is the report on a module.
type checked struct {
	File     string    `json:"file"`
	SHA256   string    `json:"sha256"`
	Exports  []string  `json:"exports"`
	Imports  []string  `json:"imports"`
	Stateful bool      `json:"stateful"`
	MemoryMB int       `json:"memory_mib"` // limit of an instance
	Budget   int64     `json:"budget"`     // limit of a call, in units of work
	Seconds  float64   `json:"seconds"`    // limit of a call
	Hooks    []verdict `json:"hooks"`
}

// verdict is the report on one hook.
type verdict struct {
	Hook     string  `json:"hook"`
	OK       bool    `json:"ok"`
	Found    string  `json:"found"`        // its result, or the fault
	Micros   float64 `json:"microseconds"` // time of a call; 0: not measured
	MBps     float64 `json:"mb_per_s,omitempty"`
	Work     int64   `json:"work"`       // units of the most costly call
	MemoryMB float64 `json:"memory_mib"` // of the largest instance
}

func (c *hookCheckCommand) Run(a *app) error {
	if err := c.check(); err != nil {
		return err
	}
	host, err := hook.NewHost("")
	if err != nil {
		return err
	}
	defer host.Close()
	var found checked
	err = c.each(a, host, func(m *hook.Module) error {
		if found.File == "" {
			l := m.Limits()
			found = checked{File: c.File, SHA256: m.SHA256, Stateful: m.Stateful(), MemoryMB: int(l.MemoryPages / 16), Budget: l.Budget,
				Seconds: l.Deadline.Seconds()}
			found.Imports, found.Exports = m.Interface()
		}
		verdicts, err := c.verdicts(a, m)
		found.Hooks = append(found.Hooks, verdicts...)
		return err
	})
	if err != nil {
		return err
	}
	return found.report(a, c.JSON)
}

// verdicts returns the reports on a hook and the functions that belong to it.
func (c *hookCheckCommand) verdicts(a *app, m *hook.Module) ([]verdict, error) {
	trials, err := c.trials(a, m, 1)
	if err != nil {
		return nil, err
	}
	var all []verdict
	note := func(v verdict, err error) {
		if v.OK = err == nil; err != nil {
			v.Found = err.Error()
		}
		work, memory := m.Peak()
		v.Work, v.MemoryMB = work, float64(memory)/(1<<20)
		all = append(all, v)
	}
	for _, t := range trials {
		if note(t.try()); !all[0].OK { // the others check its result
			return all, nil
		}
	}
	if m.Hook == hook.BuildLoss && m.Has(hook.LossGrad) {
		note(c.gradient(a, m))
	}
	if m.Hook == hook.BuildModel {
		note(c.causality(a, m))
	}
	return all, nil
}

// Errors of modules whose results are not reproducible.
var (
	errInstance = errors.New("the same input gives another result in another instance: results may depend only on inputs, configuration, seed and state")
	errCarries  = errors.New("the same input gives another result the second time, or in another order: the hook must keep nothing between calls, or export gpupipe_save and gpupipe_load")
	errState    = errors.New("an instance with the restored state of another gives other results: gpupipe_save and gpupipe_load must cover all that the hook keeps between calls")
)

// try runs the sample twice: the first time in another instance too, and the second time in an instance with the saved
// state too.
func (t trial) try() (v verdict, err error) {
	v.Hook = t.name
	first, err := t.begin()
	if err != nil {
		return v, err
	}
	defer first.close()
	out, err := first.run(0)
	if err != nil {
		return v, err
	}
	v.Found = first.found(out)
	if err := same(out, t.begin, 0, errInstance); err != nil {
		return v, err
	}
	again := first.again
	if again == nil {
		again = func() (*guest, error) { return nil, nil }
	}
	kept, err := again()
	if err != nil {
		return v, err
	}
	began := time.Now()
	second, err := first.run(1)
	took := float64(time.Since(began).Nanoseconds()) / 1e3
	if err != nil {
		return v, err
	}
	v.Micros, v.MBps = took/float64(t.calls), float64(t.bytes)/took
	if kept != nil {
		return v, same(second, func() (*guest, error) { return kept, nil }, 1, errState)
	}
	if t.forgets {
		if v.Found += "; the same every time"; t.calls > 1 {
			v.Found += " and in any order"
		}
		return v, equal(out, second, errCarries)
	}
	return v, nil
}

// same runs the sample in another guest, compares the results and closes it.
func same(out any, begin func() (*guest, error), n int, otherwise error) error {
	s, err := begin()
	if err != nil {
		return err
	}
	defer s.close()
	other, err := s.run(n)
	if err != nil {
		return err
	}
	return equal(out, other, otherwise)
}

func equal(a, b any, otherwise error) error {
	one, err := sumOf(a)
	two, errTwo := sumOf(b)
	if err = errors.Join(err, errTwo); err == nil && one != two {
		err = otherwise
	}
	return err
}

func (c *checked) report(a *app, asJSON bool) error {
	if asJSON {
		if err := a.printJSON(c); err != nil {
			return err
		}
	} else {
		state := "none: several instances run in parallel"
		if c.Stateful {
			state = "saved: one instance sees everything in order"
		}
		a.table([][]string{
			{"file", c.File}, {"sha256", c.SHA256}, {"exports", strings.Join(c.Exports, ", ")},
			{"imports", strings.Join(c.Imports, ", ")}, {"state", state},
			{"limits", fmt.Sprintf("%d MiB of memory, %s units of work and %v s a call", c.MemoryMB, grouped(c.Budget), c.Seconds)},
		})
		a.printf("\n")
		a.headed(c.rows())
	}
	if i := slices.IndexFunc(c.Hooks, func(v verdict) bool { return !v.OK }); i >= 0 {
		return usererror.New(errors.New(c.Hooks[i].Found))
	}
	return nil
}

func (c *checked) rows() [][]string {
	rows := [][]string{{"HOOK", "OK", "A CALL", "", "WORK", "MEMORY", "FOUND"}}
	for _, v := range c.Hooks {
		took, speed := "", ""
		if v.Micros > 0 {
			took = inSeconds(v.Micros / 1e6)
		}
		if v.MBps > 0 {
			speed = fmt.Sprintf("%.0f MB/s", v.MBps)
		}
		rows = append(rows, []string{v.Hook, map[bool]string{true: "yes", false: "NO"}[v.OK], took, speed,
			fmt.Sprintf("%s (%.3g %%)", grouped(v.Work), 100*float64(v.Work)/float64(c.Budget)), fmt.Sprintf("%.3g MiB", v.MemoryMB),
			v.Found})
	}
	return rows
}
