package base

// Read is a read in progress that completes in pieces. The device's lock guards it until it is done.
type Read struct {
	label  string
	data   []byte
	pieces int
	err    error
	done   chan struct{}
}

// NewRead returns a read of a buffer of that label.
func NewRead(label string) Read { return Read{label: label, done: make(chan struct{})} }

// Label returns the label of the buffer.
func (r *Read) Label() string { return r.label }

// Expect sets the size in bytes, and the number of pieces in which they come. It returns the bytes to be filled.
func (r *Read) Expect(bytes int64, pieces int) []byte {
	r.data, r.pieces = make([]byte, bytes), pieces
	if pieces == 0 {
		close(r.done)
	}
	return r.data
}

// Complete counts one piece as filled, or as failed. The first error counts.
func (r *Read) Complete(err error) {
	if r.err == nil {
		r.err = err
	}
	if r.pieces--; r.pieces == 0 {
		close(r.done)
	}
}

// Done returns a channel that is closed when all pieces are complete.
func (r *Read) Done() <-chan struct{} { return r.done }

// Completed reports whether all pieces are complete.
func (r *Read) Completed() bool { return r.pieces == 0 }

// Result returns the bytes, or the first error. All pieces must be complete.
func (r *Read) Result() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	return r.data, nil
}
