package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
)

// lineOn returns a status line on a terminal of some width, and what was written to it.
func lineOn(columns *int) (*statusLine, *strings.Builder) {
	var b strings.Builder
	print := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	return newStatusLine(print, func() int { return *columns }), &b
}

func TestStatusLineFitsTheTerminal(t *testing.T) {
	columns := 40
	l, out := lineOn(&columns)
	l.show("reading 訓練データ訓練データ訓練データ訓練データ.txt: 12%")
	assert.Equal(t, "reading 訓練データ訓練データ訓練データ…", out.String())
	assert.Less(t, table.Width(out.String()), columns)

	out.Reset()
	l.show("reading 訓練データ訓練データ訓練データ訓練データ.txt: 13%")
	assert.Empty(t, out.String(), "nothing that is visible changed")

	columns = 12 // 39 columns of text now take four rows
	l.show("step 1/2", "loss 1.0", "late")
	assert.Equal(t, "\x1b[3A\r\x1b[Jstep 1/2", out.String())

	out.Reset()
	columns = 80
	l.keep("step 2/2", "loss 0.5")
	assert.Equal(t, "\r\x1b[Jstep 2/2  loss 0.5\n", out.String())

	out.Reset()
	l.clear()
	assert.Empty(t, out.String(), "nothing is left to erase")
}

func TestFittingOmitsWhatMattersLeast(t *testing.T) {
	fields := []string{"step 1/2", "loss 1.0", "", "12 tokens/s", "lr 1"}
	assert.Equal(t, "step 1/2  loss 1.0  12 tokens/s  lr 1", fitting(80, fields))
	assert.Equal(t, "step 1/2  loss 1.0  12 tokens/s", fitting(31, fields))
	assert.Equal(t, "step 1/2  loss 1.0  lr 1", fitting(30, fields))
	assert.Equal(t, "step 1/2", fitting(3, fields))
}

func TestWithoutATerminalAPlainLineIsWrittenEverySoOften(t *testing.T) {
	var b strings.Builder
	l := newStatusLine(func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }, nil)
	l.show("kernel 1 of 9")
	assert.Empty(t, b.String(), "what ends soon needs no status")
	for i := range 2 {
		l.plain = time.Now().Add(-plainEvery)
		l.show(fmt.Sprintf("kernel %d of 9", i+2), "of everything")
		l.show("too soon")
	}
	l.clear()
	assert.Equal(t, "kernel 2 of 9  of everything\nkernel 3 of 9  of everything\n", b.String())
}

func TestEscapeControls(t *testing.T) {
	assert.Equal(t, `a\x1b[2J`+"\n\t模型é �"+`\x07\x7f\u009b\xff`, escapeControls("a\x1b[2J\n\t模型é �\x07\x7f\u009b\xff"))
}

func TestProseIsBrokenAtSpacesOnATerminal(t *testing.T) {
	narrow := func() int { return 24 }
	text := "the file exists: 模型/run.yaml \x1b[31m\nnext"
	assert.Equal(t, text, broken(text, nil))
	assert.Equal(t, "the file exists:\n模型/run.yaml \\x1b[31m\nnext", broken(text, narrow))
	var out strings.Builder
	a := &app{stdout: &out, stdoutColumns: narrow}
	a.facts([][]string{{"files", "config.json, tokenizer.json"}, {"size", "3"}})
	assert.Equal(t, "files  config.json,\n       tokenizer.json\nsize   3\n", out.String())
}

// Notes of downloads go on while a run shows its line: they come with what the run shows next, above it.
func TestNotesOfDownloadsDoNotTearTheLine(t *testing.T) {
	columns := 80
	var out, errs strings.Builder
	a := &app{stdout: &out, stderr: &errs, stdoutColumns: func() int { return columns }}
	r := newProgress(a, false)
	downloads := &status{app: a}
	downloads.note("before %d", 1)
	assert.Equal(t, "before 1\n", errs.String())
	downloads.divert(r.later)
	r.Step(train.Progress{Step: 2, Steps: 9})
	shown := out.Len()
	downloads.note("the Hub asks to wait %s", "7s")
	assert.Equal(t, shown, out.Len())
	r.Step(train.Progress{Step: 3, Steps: 9})
	assert.Regexp(t, `^\r\x1b\[Jthe Hub asks to wait 7s\nstep 3/9`, out.String()[shown:])
	shown = out.Len()
	downloads.note("it was long")
	r.end()
	assert.Equal(t, "\r\x1b[Jit was long\n", out.String()[shown:])
	assert.Equal(t, "before 1\n", errs.String())
}
