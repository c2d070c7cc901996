// Package dial connects to something that has several addresses.
package dial

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
)

// stagger is the time between the beginnings of two attempts.
const stagger = 250 * time.Millisecond

// First connects to addresses, one after the other with little time between them, and returns the first connection and
// its address. It closes the others. If there is none, the error joins those of all addresses.
func First[C io.Closer](ctx context.Context, addresses []string, connect func(ctx context.Context, address string) (C, error)) (
	conn C, address string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn    C
		address string
		err     error
	}
	results := make(chan result, len(addresses))
	for i, address := range addresses {
		go func() {
			sleep.For(time.Duration(i)*stagger, ctx.Done())
			c, err := connect(ctx, address)
			results <- result{c, address, err}
		}()
	}
	var errs []error
	for range addresses {
		r := <-results
		if r.err == nil {
			go func() {
				for range len(addresses) - len(errs) - 1 {
					if late := <-results; late.err == nil {
						_ = late.conn.Close()
					}
				}
			}()
			return r.conn, r.address, nil
		}
		errs = append(errs, r.err)
	}
	return conn, "", errors.Join(errs...)
}
