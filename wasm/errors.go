package wasm

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind is the reason why a call failed or a module was not loaded.
type Kind int

const (
	Refused  Kind = iota + 1 // the module is invalid: see the message
	Failed                   // the hook reported a failure; the instance stays usable
	Trap                     // a WebAssembly trap: unreachable, division by zero, an address outside the memory, …
	Stack                    // calls are nested deeper than Limits.Depth
	Memory                   // the module asked for more than Limits.MemoryPages, and then the call failed
	Budget                   // more work than Limits.Budget
	Deadline                 // more time than Limits.Deadline
	Canceled                 // the caller's context ended
	Pointer                  // an address passed to the host lies outside the module's memory, or is not aligned
	Shape                    // the module changed a field of a descriptor that it must not change, or stored too large a shape
	Exit                     // the module called proc_exit
	Closed                   // an earlier call failed, or Close was called
	Busy                     // a call within a call, or from two goroutines; the instance stays usable
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

// Error is the error of every function of this package if a module is at fault.
type Error struct {
	Hook   string // the hook's name, or the module's file while it is loaded
	Export string // the function that was called; "" while the module is loaded
	Batch  int    // the batch it was called for; -1 outside of batches
	Kind   Kind
	Cause  error  // never nil
	Output string // the end of the module's log of the call; may be empty
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
		fmt.Fprintf(&b, " (last output: %q)", e.Output)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Cause }

// halt ends a call from a function of the host, which panics with it to unwind the module's frames.
type halt struct {
	kind  Kind
	cause error
}

func (h *halt) Error() string { return h.cause.Error() }

func halted(k Kind, format string, a ...any) *halt { return &halt{k, fmt.Errorf(format, a...)} }

// printable returns a module's text as valid UTF-8, with control characters other than tab and newline replaced.
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
