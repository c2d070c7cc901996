package base

import "github.com/gpupipe/gpupipe/runtime/device"

// Write checks a write to a buffer under do and calls write for its data, in pieces of at most piece bytes.
func (o *Owner[B, P]) Write(do Do, b device.Buffer, offset int64, data []byte, piece int64,
	write func(b B, offset int64, data []byte) error) error {
	return do("write", Label(b), func() error {
		if err := o.Checker().Transfer("write", b, offset, int64(len(data))); err != nil {
			return err
		}
		for len(data) > 0 {
			n := min(int64(len(data)), piece)
			if err := write(b.(B), offset, data[:n]); err != nil {
				return err
			}
			offset, data = offset+n, data[n:]
		}
		return nil
	})
}

// Read checks a read of n bytes of a buffer under do and calls begin. It returns r, which is in progress then.
func (o *Owner[B, P]) Read(do Do, b device.Buffer, offset, n int64, r device.Pending, begin func(B) error) (device.Pending, error) {
	err := do("read", Label(b), func() error {
		if err := o.Checker().Transfer("read", b, offset, n); err != nil {
			return err
		}
		return begin(b.(B))
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Transfer checks a copy between buffers under do and calls begin. It returns r, which is in progress then.
func (o *Owner[B, P]) Transfer(do Do, from, to device.Range, r device.Pending, begin func() error) (device.Pending, error) {
	err := do("transfer", Label(from.Buffer), func() error {
		if err := o.Checker().Copy(from, to); err != nil {
			return err
		}
		return begin()
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}
