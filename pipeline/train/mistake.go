package train

import (
	"errors"
	"fmt"
)

// UserError is a mistake of the user's or of their machine's: bad input, a full disk, no device. It is no failure of ours.
type UserError struct{ Err error }

func (e *UserError) Error() string { return e.Err.Error() }
func (e *UserError) Unwrap() error { return e.Err }

// ErrDiverged is wrapped by the error of a run whose loss, gradient or validation loss is no longer finite.
var ErrDiverged = errors.New("training stopped")

// Mistake marks an error as the user's; nil stays nil.
func Mistake(err error) error {
	var already *UserError
	if err == nil || errors.As(err, &already) {
		return err
	}
	return &UserError{err}
}

func mistakef(format string, args ...any) error { return Mistake(fmt.Errorf(format, args...)) }
