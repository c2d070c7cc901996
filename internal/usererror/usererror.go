// Package usererror marks errors that the user or their machine caused: bad input, a full disk, no device. Commands
// exit with code 2 on these, except on a full disk, and treat all others as defects of gpupipe.
package usererror

import (
	"errors"
	"fmt"
)

// Error is an error that the user or their machine caused.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// New marks err as the user's. It returns nil for nil, and err itself if it is marked already.
func New(err error) error {
	if err == nil || Is(err) {
		return err
	}
	return &Error{err}
}

// Errorf formats an error as [fmt.Errorf] does and marks it as the user's.
func Errorf(format string, args ...any) error { return New(fmt.Errorf(format, args...)) }

// Is reports whether err, or an error that it wraps, is the user's.
func Is(err error) bool {
	var e *Error
	return errors.As(err, &e)
}
