package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
)

// Members without neighbors are remembered for some time, since reports of their links may be under way, and no longer.
func TestRecentNeighborsAreForgotten(t *testing.T) {
	r := recent{without: map[string]time.Time{}}
	of := func(members ...string) map[address][]protocol.Neighbor {
		all := map[address][]protocol.Neighbor{}
		for _, m := range members {
			all[address{member: m}] = nil
		}
		return all
	}
	now := time.Now()
	r.update(of("a", "b"), now)
	now = now.Add(10 * recently)
	r.update(of("b", "c"), now)
	assert.True(t, r.has("a"), "it had neighbors until now")
	r.update(of("b"), now.Add(recently))
	assert.True(t, r.has("a"))
	r.update(of("b"), now.Add(recently+time.Second))
	assert.False(t, r.has("a"))
	assert.True(t, r.has("b"), "it has neighbors")
	assert.True(t, r.has("c"))
}
