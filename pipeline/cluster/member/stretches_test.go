package member

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is kept of messages for later stretches is bounded, in number and in bytes.
func TestEarlyMessagesAreBounded(t *testing.T) {
	for _, x := range []struct{ size, most int }{{1, mostEarly}, {1 << 24, mostEarlyBytes >> 24}} {
		s, payload := &stretches{until: 5}, [][]byte{make([]byte, x.size)}
		for range x.most {
			require.NoError(t, s.deliver(delivery{message: stage.Message{Batch: 5}, payload: payload}))
		}
		assert.ErrorContains(t, s.deliver(delivery{message: stage.Message{Batch: 5}, payload: payload}), "before their batches have begun")
	}
}
