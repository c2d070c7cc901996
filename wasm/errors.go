package wasm

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind is why a call, or a module, was given up.
type Kind int

const (
	Refused  Kind = iota + 1 // the module is not what is expected: see the message
	Failed                   // the hook said so itself; the instance lives on
	Trap                     // WebAssembly's own: unreachable, division by zero, an address outside its memory, …
	Stack                    // calls within calls beyond Limits.Depth
	Memory                   // memory beyond Limits.MemoryPages was refused, after which the call did not succeed
	Budget                   // more work than Limits.Budget
	Deadline                 // more time than Limits.Deadline
	Canceled                 // the caller's context ended
	Pointer                  // an address given to the host lies outside the module's memory, or is not aligned
	Shape                    // a descriptor came back with what was not the module's to change, or with more than fits
	Exit                     // the module ended itself
	Closed                   // an earlier call ended badly, or Close was called
	Busy                     // a call within a call, or from two goroutines; the instance lives on
)

var kindNames = [...]string{Refused: "refused", Failed: "failed", Trap: "trap", Stack: "stack overflow", Memory: "memory limit",
	Budget: "budget exceeded", Deadline: "deadline exceeded", Canceled: "canceled", Pointer: "bad pointer", Shape: "bad array",
	Exit: "exit", Closed: "closed", Busy: "busy"}

func (k Kind) String() string {
	if k <= 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

// Error is what every function of this package returns when a module is at fault.
type Error struct {
	Hook   string // the hook's name, or the module's file while it is loaded
	Export string // the function that was called; "" while the module is loaded
	Batch  int    // the batch it was called for; -1 outside of batches
	Kind   Kind
	Cause  error  // never nil
	Output string // the end of what the module wrote to its log during the call, if anything
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "hook %s", e.Hook)
	if e.Export != "" {
		fmt.Fprintf(&b, ": %s", e.Export)
	}
	if e.Batch >= 0 {
		fmt.Fprintf(&b, ": batch %d", e.Batch)
	}
	fmt.Fprintf(&b, ": %s: %v", e.Kind, e.Cause)
	if e.Output != "" {
		fmt.Fprintf(&b, " (its last output: %q)", e.Output)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Cause }

// halt ends a call from within the host: a panic with it passes through the module's frames.
type halt struct {
	kind  Kind
	cause error
}

func (h *halt) Error() string { return h.cause.Error() }

func halted(k Kind, format string, a ...any) *halt { return &halt{k, fmt.Errorf(format, a...)} }

// printable makes text of a module's harmless: UTF-8, without control characters other than tab and newline.
func printable(b []byte) string {
	if utf8.Valid(b) && !strings.ContainsFunc(string(b), forbidden) {
		return string(b)
	}
	return strings.Map(func(r rune) rune {
		if forbidden(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(string(b), string(utf8.RuneError)))
}

func forbidden(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
