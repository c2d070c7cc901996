package jinja

import (
	"errors"
	"fmt"
	"time"
)

// Limits of a template's rendering.
const (
	maxWork  = 2 << 20  // evaluations, elements of lists, and 64 bytes of text count as one
	maxText  = 16 << 20 // bytes of a string
	maxDepth = 100      // of macros that call each other, and of nested expressions and tags
	maxChain = 1000     // operators in a row
	maxRange = 100000   // elements of range, as in Jinja's sandbox
)

// failure is the panic by which a template ends with an error. Parse and Render recover it.
type failure struct{ err error }

func fail(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func failAt(line int, format string, args ...any) {
	panic(failure{fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...))})
}

// caught makes an error of a panic.
func caught(err *error) {
	switch p := recover().(type) {
	case nil:
	case failure:
		*err = p.err
	default:
		*err = fmt.Errorf("internal error: %v", p)
	}
}

// errWork ends templates that compute without end.
var errWork = errors.New("the template computes too much")

// machine is one rendering: its budget, and what templates see of the world.
type machine struct {
	work  int
	depth int
	now   time.Time
	// filters are what the filter map finds by name: a field, as the table of filters holds map itself.
	filters map[string]filter
}

// spend takes n units of the budget.
func (m *machine) spend(n int) {
	if m.work -= n; m.work < 0 || n < 0 {
		panic(failure{errWork})
	}
}

// spendText takes the cost of a text of n bytes.
func (m *machine) spendText(n int) {
	if n > maxText || n < 0 {
		fail("the template makes a text of more than %d bytes", maxText)
	}
	m.spend(n/64 + 1)
}

// enter counts nested calls; the result ends the call.
func (m *machine) enter() func() {
	if m.depth++; m.depth > maxDepth {
		fail("the template nests more than %d calls", maxDepth)
	}
	return func() { m.depth-- }
}
