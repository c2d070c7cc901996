package abi

import (
	"fmt"
	"time"
)

// Call is what both hosts keep of a call in progress.
type Call struct {
	Export   string
	Batch    int
	Deadline time.Time
	Message  string // the argument of fail
	Failed   bool   // fail was called
	Refused  bool   // growth of the memory was refused
	budget   int64
	left     int64 // the budget that has not been granted to the module's counter
}

// Begin returns the state of a call that may do budget units of work within a time.
func Begin(export string, batch int, budget int64, within time.Duration) Call {
	return Call{Export: export, Batch: batch, Deadline: time.Now().Add(within), budget: budget, left: budget}
}

// Refill returns what the module's counter, which holds some work, is set to: the next quantum of the budget. It
// reports false if the budget is used up.
func (c *Call) Refill(counter int64) (grant int64, ok bool) {
	left := c.left + counter
	grant = max(0, min(Quantum, left))
	c.left = left - grant
	return grant, left >= 0
}

// Used returns the work that the call has done so far.
func (c *Call) Used(counter int64) int64 { return c.budget - c.left - counter }

// Exceeds reports whether work is more than the budget.
func (c *Call) Exceeds(work int64) bool { return work > c.budget }

// Overdrawn is the error of a call that exceeds its budget.
func (c *Call) Overdrawn() error { return fmt.Errorf("took more than %d units of work", c.budget) }

// Status returns a Failure if the result is negative or the call called fail.
func (c *Call) Status(result int32, err error) error {
	switch {
	case err != nil:
		return err
	case c.Failed && c.Message != "":
		return &Failure{c.Message}
	case c.Failed:
		return &Failure{"called fail without a message"}
	case result < 0:
		return &Failure{fmt.Sprintf("returned %d", result)}
	}
	return nil
}

// Failure is an error that the hook itself reported. The instance stays usable.
type Failure struct{ Text string }

func (f *Failure) Error() string { return f.Text }

// CheckVersion returns an error if the hosts do not implement the minor version that a module needs.
func CheckVersion(minor int32) error {
	if minor < 0 || minor > MinorVersion {
		return fmt.Errorf("needs version 1.%d of the ABI, expected at most 1.%d", minor, MinorVersion)
	}
	return nil
}
