package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

// event is a line of --json.
type event map[string]any

// progress shows a run: as JSON lines, as one line that is rewritten on a terminal, or as plain lines now and then.
type progress struct {
	*app
	json    bool
	open    bool // a line on the terminal waits to be rewritten
	read    time.Time
	printed time.Time
	timed   bool // it was said that kernels are timed
}

func (p *progress) Start(s train.Start) {
	p.endLine()
	if p.json {
		p.emit(event{"event": "start", "start": s})
		return
	}
	p.printf("%s\n", s.Config)
	p.printf("model       %s parameters\n", grouped(s.Parameters))
	p.printf("data        %s training tokens, %s held out\n", grouped(s.Data["train"]), grouped(s.Data["val"]))
	if s.Precision != "" {
		p.printf("precision   %s\n", s.Precision)
	}
	for _, l := range s.Lines {
		p.line(l, len(s.Lines) > 1)
	}
	p.printf("optimizer   %s\n", strings.ReplaceAll(strings.TrimSpace(s.Optimizer), "\n", "\n            "))
	if s.FirstStep >= s.Steps {
		p.printf("steps       none: %d of %d are done\n\n", s.FirstStep, s.Steps)
		return
	}
	p.printf("steps       %d to %d\n\n", s.FirstStep+1, s.Steps)
}

// line tells of one stage: its part of the model, its device, its memory.
func (p *progress) line(l engine.LinePlan, several bool) {
	software := ""
	if l.Device.Kind == device.Software {
		software = ": a software adapter, which computes on the CPU"
	}
	if several {
		p.printf("%-12s%s; microbatches in flight %d\n", l.Name, l.Parts(), l.Slots)
	}
	p.printf("device      %s, %s (%s%s)\n", l.Device.Name, l.Device.Adapter, l.Device.Kind, software)
	m := l.Memory
	p.printf("memory      %s bytes on the device: variables %s, arena %s, constants %s, inputs %s, outputs %s\n", grouped(m.Total),
		grouped(m.Variables), grouped(m.Arena), grouped(m.Constants), grouped(m.Inputs), grouped(m.Outputs))
	shared := ""
	if l.Shared > 0 {
		shared = fmt.Sprintf(", %s of the host's shared with other devices", grouped(l.Shared))
	}
	p.printf("            %s bytes allocated, %s more for transfers%s; %d kernels\n", grouped(l.Allocated), grouped(l.Staging), shared, l.Kernels)
}

func (p *progress) Reading(done, total int64) { p.percent("reading data", done, total) }

func (p *progress) writing(done, total int64) { p.percent("writing tensors", done, total) }

func (p *progress) predicting(done, total int64) { p.percent("predicting", done, total) }

func (p *progress) percent(what string, done, total int64) {
	if p.json || time.Since(p.read) < 200*time.Millisecond || !p.terminal {
		return
	}
	p.read = time.Now()
	p.rewrite(fmt.Sprintf("%s: %d%%", what, 100*done/max(1, total)))
}

// timing tells that a kernel's candidates are being timed.
func (p *progress) timing(label string, candidates int) {
	switch {
	case p.json:
		p.emit(event{"event": "timing", "kernel": label, "candidates": candidates})
	case p.terminal:
		p.rewrite(fmt.Sprintf("timing %d ways to compute %s", candidates, label))
	case !p.timed:
		p.timed = true
		p.printf("timing kernels on this device: once, the choices are kept\n")
	}
}

// Measuring tells what is timed to decide where the model is cut.
func (p *progress) Measuring(device, what string) {
	switch {
	case p.json:
		p.emit(event{"event": "measuring", "device": device, "what": what})
	case p.terminal:
		p.rewrite(fmt.Sprintf("%s: timing %s", device, what))
	}
}

func (p *progress) Step(s train.Progress) {
	if p.json {
		p.emit(event{"event": "step", "step": s})
		return
	}
	val := ""
	if s.ValLoss != nil {
		val = fmt.Sprintf("  val loss %.4f", *s.ValLoss)
	}
	line := fmt.Sprintf("step %*d/%d  loss %.4f%s  lr %.3g  |g| %.3f  %s tokens/s  %s left", len(fmt.Sprint(s.Steps)), s.Step, s.Steps,
		s.Loss, val, s.LR, s.GradNorm, grouped(int64(s.TokensPerSec)), s.Left.Round(time.Second))
	milestone := s.Step == 1 || s.Step == s.Steps || s.ValLoss != nil
	switch {
	case p.terminal && !milestone:
		p.rewrite(line)
	case p.terminal:
		p.rewrite(line)
		p.endLine()
	case milestone || time.Since(p.printed) > 10*time.Second:
		p.printed = time.Now()
		p.printf("%s\n", line)
	}
}

func (p *progress) Note(format string, args ...any) {
	p.endLine()
	text := fmt.Sprintf(format, args...)
	if p.json {
		p.emit(event{"event": "note", "text": text})
		return
	}
	p.printf("%s\n", text)
}

// result tells how the run ended.
func (p *progress) result(r train.Result) {
	if r.ValLoss != nil && r.UnigramEntropy > 0 {
		p.printf("\nvalidation loss %.4f nats per token; the unigram entropy of that text is %.4f\n", *r.ValLoss, r.UnigramEntropy)
	}
	if r.Checkpoint != "" {
		p.printf("checkpoint  %s\n", r.Checkpoint)
	}
	if r.Plot != "" {
		p.printf("plot        %s\n", r.Plot)
	}
	if r.Profile != "" {
		p.printf("profile     %s\n", r.Profile)
	}
}

// profiled shows where the time goes.
func (p *progress) profiled(x *profile.Profile) {
	if p.json {
		return // profile.json has it
	}
	p.endLine()
	if err := x.Print(p.stdout); err != nil && p.failed == nil {
		p.failed = usererror.New(fmt.Errorf("standard output: %w", err))
	}
	p.printf("\n")
}

func (p *progress) emit(e event) {
	if err := p.printJSON(e); err != nil && p.failed == nil {
		p.failed = err
	}
}

func (p *progress) rewrite(line string) {
	p.printf("\r\x1b[K%s", line)
	p.open = true
}

// endLine leaves the line that was being rewritten.
func (p *progress) endLine() {
	if p.open {
		p.printf("\n")
		p.open = false
	}
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
