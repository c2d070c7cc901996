package dial

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// conn is a connection to an address.
type conn struct {
	address string
	closed  bool
}

func (c *conn) Close() error {
	c.closed = true
	return nil
}

func TestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := map[string]time.Duration{"slow": time.Minute, "quick": time.Second, "late": 900 * time.Millisecond}
		made := map[string]*conn{}
		connect := func(ctx context.Context, address string) (*conn, error) {
			if !sleep.For(takes[address], ctx.Done()) && address != "late" { // one that does not heed its context
				return nil, ctx.Err()
			}
			if takes[address] == 0 {
				return nil, errors.New(address + " refuses")
			}
			made[address] = &conn{address: address}
			return made[address], nil
		}
		began := time.Now()
		c, address, err := First(t.Context(), []string{"x", "slow", "quick", "late"}, connect)
		require.NoError(t, err)
		assert.Equal(t, "quick", address)
		assert.Equal(t, "quick", c.address)
		assert.Equal(t, 2*stagger+time.Second, time.Since(began))
		synctest.Wait()
		assert.False(t, c.closed)
		assert.Nil(t, made["slow"])
		assert.True(t, made["late"].closed)

		_, _, err = First(t.Context(), []string{"x", "y"}, connect)
		assert.EqualError(t, err, "x refuses\ny refuses")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = First(ctx, []string{"x", "slow"}, connect)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
