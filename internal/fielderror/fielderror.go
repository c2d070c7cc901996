// Package fielderror is the error of a field of a config or of options. Packages that take options return it with their
// own names of fields. The reader of the file or the flags adds the section, with In, and the place.
package fielderror

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Error is a field with an invalid value, or with a value that could not be used.
type Error struct {
	Field    string // as the package that takes the options names it: "d_model"
	Found    any
	Expected string
	Err      error // the cause; Found and Expected are unused then
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Field, e.Err)
	}
	return fmt.Sprintf("%s: found %s, expected %s", e.Field, Text(e.Found), e.Expected)
}

func (e *Error) Unwrap() error { return e.Err }

// New returns the *Error of an invalid value. Format and args make Expected.
func New(field string, found any, format string, args ...any) error {
	return &Error{Field: field, Found: found, Expected: fmt.Sprintf(format, args...)}
}

// Wrap returns the *Error of a field whose value could not be used. It returns nil for nil.
func Wrap(field string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Field: field, Err: err}
}

// In returns err with "section." before its field, if err is an *Error, and else err itself.
func In(section string, err error) error {
	return Rename(err, func(field string) string { return section + "." + field })
}

// Rename returns err with another name of its field, if err is an *Error, and else err itself.
func Rename(err error, name func(field string) string) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}
	renamed := *e
	renamed.Field = name(e.Field)
	return &renamed
}

// Text formats a value for a message: texts in quotes, whole numbers with all their digits.
func Text(value any) string {
	switch x := value.(type) {
	case string, []string:
		return fmt.Sprintf("%q", x)
	case json.RawMessage:
		return string(x)
	case float64:
		if f := math.Abs(x); f == 0 || f >= 1 && f < 1<<53 {
			return strconv.FormatFloat(x, 'f', -1, 64)
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	return fmt.Sprint(value)
}
