// Package column has what the readers of columnar files share.
package column

import (
	"errors"
	"fmt"
	"io"
)

// MissingError reports a file without the column that was to be read.
type MissingError struct {
	Column string
	Found  []string // the columns that could be read
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("no column %q, found %q", e.Column, e.Found)
}

// ReadAt fills b with the bytes at an offset. If there are fewer, it returns [io.ErrUnexpectedEOF].
func ReadAt(r io.ReaderAt, b []byte, at int64) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}
