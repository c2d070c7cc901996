package member

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// silentAfter is a node from which messages arrive a number of times.
type silentAfter struct {
	requested
	left int
}

var errSilent = errors.New("not acknowledged")

func (n *silentAfter) Flush(_ context.Context, peer string) error {
	if n.left--; peer != "b" || n.left < 0 {
		return errSilent
	}
	return nil
}

// A member that does not reach another says so. One that has reached it and then does not has another error.
func TestProbeWithoutAConnection(t *testing.T) {
	for left, apart := range map[int]bool{0: true, 1: false, 9: false} {
		m := New(Options{ID: "a"})
		m.Use(&silentAfter{left: left})
		q, err := json.Marshal(protocol.ProbeRequest{To: "b", Bytes: 1 << 20, Seconds: 1})
		require.NoError(t, err)
		_, err = m.Request(t.Context(), protocol.Probe, q)
		require.ErrorIs(t, err, errSilent)
		assert.Equal(t, apart, errors.Is(err, control.ErrApart), left)
	}
}
