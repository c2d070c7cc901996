package transport

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A limited uplink counts the bytes of all classes. Requests do not wait for it, nor does a connection that has ended.
func TestUplink(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	u := newUplink(1000)
	u.wait(Bulk, 2*fragmentPayload, nil) // a burst
	u.wait(Urgent, fragmentPayload, nil)
	u.wait(Hot, fragmentPayload, ended)
	assert.InDelta(t, -2*fragmentPayload, u.limiter.Tokens(), fragmentPayload/4, "bytes that are owed")
	newUplink(0).wait(Bulk, fragmentPayload, nil)
}
