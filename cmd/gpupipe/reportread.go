package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/report"
	"github.com/gpupipe/gpupipe/pipeline/runs/verify"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// deviceTables shows the devices, and the limits of each.
func deviceTables(found []deviceLine) []report.Table {
	devices := report.Table{Head: []string{"name", "adapter", "kind", "vendor", "API", "driver"}}
	limits := report.Table{Title: "Limits", Head: []string{"limit"}}
	values := map[string][]string{}
	var names []string
	for i, d := range found {
		devices.Rows = append(devices.Rows, []string{d.Name, d.Hardware(), string(d.Kind), d.Vendor, d.API, d.Driver})
		limits.Head = append(limits.Head, d.Name)
		for _, field := range flatten(d) {
			if values[field[0]] == nil {
				names = append(names, field[0])
				values[field[0]] = make([]string, len(found))
			}
			values[field[0]][i] = field[1]
		}
	}
	for _, n := range names {
		limits.Rows = append(limits.Rows, append([]string{n}, values[n]...))
	}
	return []report.Table{devices, limits}
}

// flatten lists the values of a device's JSON, under limits and beside it, by name.
func flatten(d deviceLine) (fields [][2]string) {
	text, err := json.Marshal(d)
	if err != nil {
		return nil
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(text, &all) != nil {
		return nil
	}
	var limits map[string]json.RawMessage
	_ = json.Unmarshal(all["limits"], &limits)
	for _, shown := range []string{"limits", "name", "adapter", "kind", "vendor", "api", "driver"} {
		delete(all, shown)
	}
	for name, v := range limits {
		all[name] = v
	}
	for name, v := range all {
		fields = append(fields, [2]string{name, string(v)})
	}
	slices.SortFunc(fields, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return fields
}

func readSelftest(output []byte, s *report.Section) error {
	var r selftestReport
	if err := json.Unmarshal(output, &r); err != nil {
		return fmt.Errorf("gpupipe selftest printed no result: %w", err)
	}
	wrong := report.Table{Title: "Wrong results", Head: []string{"op", "failure"}}
	runs := 0
	for _, l := range r.Lines {
		runs += l.Runs
		for _, f := range l.Failures {
			wrong.Rows = append(wrong.Rows, []string{l.Op, f})
		}
	}
	s.Note = fmt.Sprintf("%d runs of %d ops", runs, len(r.Lines))
	if len(r.Omitted) > 0 {
		s.Note += fmt.Sprintf("; %d omitted for lack of time: %s", len(r.Omitted), strings.Join(r.Omitted, ", "))
	}
	s.Tables = append(s.Tables, wrong)
	if !r.OK {
		return errSelftest
	}
	return nil
}

func readVerify(output []byte, s *report.Section) error {
	var r verify.Report
	if err := json.Unmarshal(output, &r); err != nil {
		return fmt.Errorf("gpupipe verify printed no result: %w", err)
	}
	cases := report.Table{Head: []string{"case", "against", "verdict", "detail"}}
	for _, c := range r.Cases {
		cases.Rows = append(cases.Rows, []string{c.Name, c.Against, string(c.Verdict), c.Detail})
	}
	s.Note = fmt.Sprintf("%d cases", len(r.Cases))
	s.Tables = append(s.Tables, cases)
	if !r.OK {
		return errVerify
	}
	return nil
}

func readBench(output []byte, s *report.Section) error {
	var r benchReport
	if err := json.Unmarshal(output, &r); err != nil {
		return fmt.Errorf("gpupipe bench printed no result: %w", err)
	}
	if r.Peak != (profile.Peak{}) { // only cases with arithmetic need it
		s.Note = fmt.Sprintf("peak %s GFLOP/s, %s GB/s", rateText(r.Peak.GFLOPS), rateText(r.Peak.GBps))
	}
	results := report.Table{Head: []string{"case", "µs", "GFLOP/s", "GB/s", "of peak", "kernels"}}
	for _, c := range r.Results {
		results.Rows = append(results.Rows, []string{c.Name, fmt.Sprintf("%.1f", c.DurationMicros), rateText(c.GFLOPS), rateText(c.GBps),
			percentage(c.OfPeak), strings.Join(c.Kernels, ", ")})
	}
	steps := report.Table{Head: []string{"step", "ms", "tokens/s", "GFLOP/s", "of peak"}}
	for _, st := range r.Steps {
		steps.Rows = append(steps.Rows, []string{st.Name, fmt.Sprintf("%.2f", st.DurationMicros/1e3), rateText(st.TokensPerSec),
			rateText(st.GFLOPS), percentage(st.OfPeak)})
	}
	s.Tables = append(s.Tables, results, steps)
	return nil
}

// readTraining reads the JSON lines of a run, which may stop early, and its profile.
func readTraining(output []byte, path string, s *report.Section) error {
	var last *train.Progress
	rates := report.Table{Head: []string{"step", "loss", "gradient norm", "tokens/s"}}
	for line := range bytes.Lines(output) {
		var e struct{ Step *train.Progress }
		if json.Unmarshal(line, &e) != nil || e.Step == nil {
			continue
		}
		last = e.Step
		rates.Rows = append(rates.Rows, []string{fmt.Sprint(last.Step), fmt.Sprintf("%.4f", last.Loss), fmt.Sprintf("%.3f", last.GradNorm),
			rateText(last.TokensPerSec)})
	}
	s.Tables = append(s.Tables, rates)
	text, err := os.ReadFile(path)
	if err != nil {
		return errors.New("the run wrote no profile")
	}
	var p profile.Profile
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	p.Title = s.Name // and not the path of the run
	if s.Data, err = json.Marshal(p); err != nil {
		return err
	}
	for _, rank := range p.Ranks {
		s.Tables = append(s.Tables, kernelTable(rank, p.Steps))
		s.Note = fmt.Sprintf("%.2f ms of kernels per step", rank.DurationMicros/1e3/float64(max(1, p.Steps)))
	}
	if last != nil {
		s.Note += fmt.Sprintf("; loss %.4f after %d steps", last.Loss, last.Step)
	}
	return nil
}

// kernelTable shows the kernels that take the most time, and which variant of each was chosen. Equal kernels of
// different layers are one row.
func kernelTable(rank profile.Rank, steps int) report.Table {
	kernels := rank.Alike()
	t := report.Table{Title: fmt.Sprintf("The %d of %d distinct kernels that take the most time", min(shownKernels, len(kernels)),
		len(kernels)),
		Head: []string{"program", "kernel", "variant", "calls per step", "µs per step", "share", "GFLOP/s", "GB/s", "of peak"}}
	steps = max(1, steps)
	for _, k := range kernels[:min(shownKernels, len(kernels))] {
		t.Rows = append(t.Rows, []string{k.Program, k.Label, k.Candidate, fmt.Sprint(k.Calls / steps),
			fmt.Sprintf("%.1f", k.DurationMicros/float64(steps)), percentage(k.Share),
			rateText(k.GFLOPS), rateText(k.GBps), percentage(k.OfPeak)})
	}
	return t
}

// rateText prints a rate; one that is not known is empty.
func rateText(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.4g", v)
}

func percentage(share float64) string {
	if share == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
