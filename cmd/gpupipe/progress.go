package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// event is a line of --json.
type event map[string]any

// progress shows a run: as JSON lines, as one line that is rewritten on a terminal, or as plain lines every so often.
type progress struct {
	*app
	json  bool
	line  *statusLine
	timed bool // the note that kernels are timed was written

	mu     sync.Mutex
	queued []string // notes of other goroutines
}

func newProgress(a *app, json bool) *progress {
	return &progress{app: a, json: json, line: newStatusLine(a.printf, a.stdoutColumns)}
}

func (p *progress) Start(s train.Start) {
	p.line.clear()
	if p.json {
		p.emit(event{"event": "start", "start": s})
		return
	}
	for _, c := range s.Changed {
		p.printf("%s\n", c)
	}
	p.prose("(all other keys have their defaults; config.yaml in the run folder has every key)\n\n")
	p.labeled("model", describeParameters(s.Parameters, s.Active)+" parameters")
	p.labeled("data", fmt.Sprintf("%s training tokens%s, %s held out", grouped(s.Data["train"]), inFirstFiles(s), grouped(s.Data["val"])))
	if s.Precision != "" {
		p.labeled("precision", s.Precision)
	}
	for _, l := range s.Ranks {
		p.rank(l, len(s.Ranks) > 1)
	}
	label := "optimizer"
	for line := range strings.Lines(strings.TrimSpace(s.Optimizer)) {
		p.labeled(label, strings.TrimSuffix(line, "\n"))
		label = ""
	}
	if s.FirstStep >= s.Steps {
		p.labeled("steps", fmt.Sprintf("none: %d of %d are done\n", s.FirstStep, s.Steps))
		return
	}
	p.labeled("steps", fmt.Sprintf("%d to %d\n", s.FirstStep+1, s.Steps))
}

// inFirstFiles says of training text that is streamed which files the number of tokens is of.
func inFirstFiles(s train.Start) string {
	switch {
	case s.Files == 0:
		return ""
	case s.FirstFiles == 1:
		return fmt.Sprintf(" in the first of %d files", s.Files)
	}
	return fmt.Sprintf(" in the first %d of %d files", s.FirstFiles, s.Files)
}

// rank shows a rank: its part of the model, its device, its memory.
func (p *progress) rank(l engine.RankPlan, several bool) {
	software := ""
	if l.Device.Kind == device.Software {
		software = ": computes on the CPU"
	}
	if several {
		p.column(l.Name, max(labelWidth, len(l.Name)+2), fmt.Sprintf("%s; microbatches in flight %d", l.Chunks(), l.Slots))
	}
	p.labeled("device", fmt.Sprintf("%s, %s (%s%s)", l.Device.Name, l.Device.Hardware(), l.Device.Kind, software))
	m := l.Memory
	p.labeled("memory", fmt.Sprintf("%s on the device: variables %s, arena %s, constants %s, inputs %s, outputs %s", inBytes(m.Total),
		inBytes(m.Variables), inBytes(m.Arena), inBytes(m.Constants), inBytes(m.Inputs), inBytes(m.Outputs)))
	shared := ""
	if l.Shared > 0 {
		shared = fmt.Sprintf(", %s of the host's shared with other devices", inBytes(l.Shared))
	}
	p.labeled("", fmt.Sprintf("%s allocated, %s more for transfers%s; %d kernels", inBytes(l.Allocated), inBytes(l.Staging), shared,
		l.Kernels))
}

func (p *progress) Reading(done, total int64) {
	p.showQueued()
	p.percent("reading data", done, total)
}

func (p *progress) writing(done, total int64) { p.percent("writing tensors", done, total) }

func (p *progress) predicting(done, total int64) { p.percent("predicting", done, total) }

func (p *progress) percent(what string, done, total int64) {
	if !p.json {
		p.line.show(fmt.Sprintf("%s: %d%%", what, 100*done/max(1, total)))
	}
}

// kernelTiming is a kernel whose variants are being timed.
type kernelTiming = tune.Timing

func timingText(t kernelTiming) string {
	return fmt.Sprintf("timing kernel %d of %d: %d variants of %s", t.Kernel, t.Kernels, t.Candidates, t.Label)
}

// timing shows which kernel is being timed.
func (p *progress) timing(t kernelTiming) {
	if p.json {
		p.emit(event{"event": "timing", "kernel": t.Label, "candidates": t.Candidates, "number": t.Kernel, "total": t.Kernels})
		return
	}
	if !p.timed {
		p.timed = true
		p.line.keep("timing kernels on this device, once: later runs begin with the fastest")
	}
	p.line.show(timingText(t))
}

// Measuring shows which timing is under way to decide where the model is cut.
func (p *progress) Measuring(device, what string) {
	if p.json {
		p.emit(event{"event": "measuring", "device": device, "what": what})
		return
	}
	p.line.show(fmt.Sprintf("%s: timing %s", device, what))
}

func (p *progress) Step(s train.Progress) {
	p.showQueued()
	if p.json {
		p.emit(event{"event": "step", "step": s})
		return
	}
	fields := []string{fmt.Sprintf("step %*d/%d", len(fmt.Sprint(s.Steps)), s.Step, s.Steps), fmt.Sprintf("loss %.4f", s.Loss)}
	if s.ValLoss != nil {
		fields = append(fields, fmt.Sprintf("val loss %.4f", *s.ValLoss))
	}
	for _, r := range s.Tasks {
		fields = append(fields, fmt.Sprintf("%s %.3f", r.Task, r.Accuracy))
	}
	fields = append(fields, grouped(int64(s.TokensPerSec))+" tokens/s", s.Left.Round(time.Second).String()+" left",
		fmt.Sprintf("lr %.3g", s.LR), fmt.Sprintf("|g| %.3f", s.GradNorm))
	if s.Step == 1 || s.Step == s.Steps || s.ValLoss != nil || len(s.Tasks) > 0 {
		p.line.keep(fields...)
	} else {
		p.line.show(fields...)
	}
}

func (p *progress) Note(format string, args ...any) {
	p.line.clear()
	text := fmt.Sprintf(format, args...)
	if p.json {
		p.emit(event{"event": "note", "text": text})
		return
	}
	p.prose(text + "\n")
}

// later records a note, from any goroutine. The goroutine of the run shows it before its next output.
func (p *progress) later(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued = append(p.queued, fmt.Sprintf(format, args...))
}

func (p *progress) showQueued() {
	p.mu.Lock()
	notes := p.queued
	p.queued = nil
	p.mu.Unlock()
	for _, text := range notes {
		p.Note("%s", text)
	}
}

// end clears the line of progress, and shows queued notes, before a result is printed.
func (p *progress) end() {
	p.showQueued()
	p.line.clear()
}

// result shows how the run ended.
func (p *progress) result(r train.Result) {
	if r.ValLoss != nil && r.Validation != nil {
		p.prose(fmt.Sprintf("\nvalidation loss %.4f nats per token: %s\n", *r.ValLoss, measuredOn(*r.Validation, r.UnigramEntropy)))
	}
	if r.Checkpoint != "" {
		p.printf("checkpoint  %s\n", r.Checkpoint)
	}
	if r.Best != nil {
		p.printf("best        step %d, validation loss %.4f: --step best\n", r.Best.Step, r.Best.ValLoss)
	}
	if r.Plot != "" {
		p.printf("plot        %s\n", r.Plot)
	}
	if r.ExpertsPlot != "" {
		p.printf("experts     %s\n", r.ExpertsPlot)
	}
	if r.Profile != "" {
		p.printf("profile     %s\n", r.Profile)
	}
}

// measuredOn names the text of a validation loss, and how much of it was measured.
func measuredOn(v train.Validation, entropy float64) string {
	part := fmt.Sprintf("all %d batches", v.Of)
	if v.Batches < v.Of {
		part = fmt.Sprintf("the first %d of %d batches (train.eval_batches)", v.Batches, v.Of)
	}
	text := fmt.Sprintf("%s, %s, %s tokens", v.Text, part, grouped(v.Tokens))
	if entropy > 0 {
		text += fmt.Sprintf("; the unigram entropy of that text is %.4f", entropy)
	}
	return text
}

// profiled shows where the time goes.
func (p *progress) profiled(x *profile.Profile) {
	if p.json {
		return // profile.json has it
	}
	p.line.clear()
	p.lost(x.Print(p.stdout, p.width()))
	p.printf("\n")
}

func (p *progress) emit(e event) {
	_ = p.printJSON(e) // the command fails with it at its end
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
