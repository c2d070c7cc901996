package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/gpupipe/gpupipe/internal/table"
	"golang.org/x/term"
)

// plainEvery is the time between two lines of status where the output is not a terminal.
const plainEvery = 10 * time.Second

// statusLine shows progress. On a terminal it is one line, rewritten in place and cut to the terminal's width.
// Elsewhere it is a plain line every so often.
type statusLine struct {
	print   func(format string, args ...any)
	columns func() int // the terminal's present width; nil: the output is not a terminal
	text    string     // what the terminal's last line shows; "": nothing
	plain   time.Time  // when the last plain line was written
}

func newStatusLine(print func(format string, args ...any), columns func() int) *statusLine {
	return &statusLine{print: print, columns: columns, plain: time.Now()}
}

// show replaces the line by as many of the fields as fit.
func (l *statusLine) show(fields ...string) {
	if l.columns == nil {
		if time.Since(l.plain) >= plainEvery {
			l.keep(fields...)
		}
		return
	}
	columns := l.columns()
	text := table.Truncate(escapeControls(fitting(columns-1, fields)), columns-1)
	if text != l.text {
		l.clear()
		l.print("%s", text)
		l.text = text
	}
}

// keep writes a line that stays, in place of the one shown.
func (l *statusLine) keep(fields ...string) {
	l.clear()
	l.plain = time.Now()
	if l.columns == nil {
		l.print("%s\n", escapeControls(strings.Join(fields, fieldGap)))
		return
	}
	l.print("%s\n", escapeControls(fitting(l.columns()-1, fields)))
}

// clear erases the line. A terminal that has become narrower has wrapped it over several rows.
func (l *statusLine) clear() {
	if l.text == "" {
		return
	}
	if rows := (table.Width(l.text) - 1) / max(1, l.columns()); rows > 0 {
		l.print("\x1b[%dA", rows)
	}
	l.print("\r\x1b[J")
	l.text = ""
}

const fieldGap = "  "

// fitting joins fields, the most important ones first, and omits the fields for which a width has no room. The first
// field always stays.
func fitting(width int, fields []string) string {
	var text string
	for i, f := range fields {
		if next := text + fieldGap + f; i == 0 {
			text = f
		} else if f != "" && table.Width(next) <= width {
			text = next
		}
	}
	return text
}

// escapeControls escapes what would change a terminal's state: control characters other than tab and newline, and bytes
// that are not UTF-8.
func escapeControls(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(text[i:], string(unicode.ReplacementChar)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r == '\n' || r == '\t' || !unicode.IsControl(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// columnsOf returns a function that measures the width of the terminal that a file is; nil if it is not a terminal.
func columnsOf(f *os.File) func() int {
	if !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" || !rewritable(f) {
		return nil
	}
	return func() int {
		columns, _, err := term.GetSize(int(f.Fd()))
		if err != nil || columns < 1 {
			return 80
		}
		return columns
	}
}

// status is a status line on standard error, for commands that print a result at their end.
type status struct {
	*app
	mu     sync.Mutex
	silent bool
	notes  func(format string, args ...any) // shows notes; nil: they are lines of their own
	line   *statusLine
}

func (s *status) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent {
		return
	}
	if s.line == nil {
		s.line = newStatusLine(s.warnf, s.stderrColumns)
	}
	s.line.show(fmt.Sprintf(format, args...))
}

// timing shows which kernel is being timed.
func (s *status) timing(t kernelTiming) { s.say("%s", timingText(t)) }

// mute clears the line, and says from now on nothing, or something again.
func (s *status) mute(silent bool) {
	s.mu.Lock()
	s.silent = silent
	s.mu.Unlock()
	s.clear()
}

// note writes a note in place of the line, or where notes are shown.
func (s *status) note(format string, args ...any) {
	s.mu.Lock()
	to := s.notes
	s.mu.Unlock()
	if to == nil {
		s.clear()
		to = s.app.note
	}
	to(format, args...)
}

// divert has notes shown elsewhere from now on; nil: as lines of their own again. Without a status line it does
// nothing.
func (s *status) divert(notes func(format string, args ...any)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = notes
}

func (s *status) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil {
		s.line.clear()
	}
}
