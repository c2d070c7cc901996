package member

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

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

// A probe that is not answered has the error of its message.
func TestProbeWithoutAnAnswer(t *testing.T) {
	for _, left := range []int{0, 1, 9} {
		m := New(Options{ID: "a"})
		m.Use(&silentAfter{left: left})
		q, err := json.Marshal(protocol.ProbeRequest{To: "b", Bytes: 1 << 20, Seconds: 1})
		require.NoError(t, err)
		_, err = m.Request(t.Context(), protocol.Probe, q)
		assert.ErrorIs(t, err, errSilent, left)
	}
}
