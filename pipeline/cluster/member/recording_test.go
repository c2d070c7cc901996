package member

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// A recording sends no more than the coordinator permits, drops what does not fit, and reports how much.
func TestRecordingIsBounded(t *testing.T) {
	var sent []protocol.Events
	events := 0
	r := &recording{times: &timestamps{}, send: func(h protocol.Events, payload [][]byte) {
		all, err := protocol.DecodeEvents(payload)
		require.NoError(t, err)
		sent, events = append(sent, h), events+len(all)
	}}
	recorded := 0
	record := func(n int) {
		for range n {
			r.Complete("stage 0", trace.Forward, strings.Repeat("F", 90), time.Now(), time.Millisecond, map[string]any{"batch": 3})
			recorded++
		}
	}
	record(200)
	assert.Empty(t, sent, "nothing is permitted yet")
	r.permit(2)
	assert.Empty(t, sent, "no message is full")
	record(200)
	assert.Len(t, sent, 1)
	record(2000)
	assert.Len(t, sent, 2)
	record(100_000)
	assert.Len(t, sent, 2)
	assert.Len(t, r.waiting, mostEvents)
	assert.NotZero(t, r.dropped)
	r.end()
	require.Len(t, sent, 2+mostEvents+1)
	last := sent[len(sent)-1]
	assert.True(t, last.Last)
	assert.Equal(t, recorded, events+last.Dropped)
	record(1)
	assert.Len(t, sent, 2+mostEvents+1, "nothing follows the end")
}

// Time stamps keep the durations between times, and leave times of other processes as they are.
func TestTimestamps(t *testing.T) {
	var s timestamps
	start := time.Now()
	stamp := s.of(start)
	assert.InDelta(t, start.UnixNano(), stamp, float64(protocol.TimestampError))
	for i := range 1000 {
		later := start.Add(time.Duration(i) * 7 * time.Microsecond)
		assert.Equal(t, stamp+int64(i)*7000, s.of(later))
	}
	other := time.Unix(0, 123_456_789_012_345_678)
	assert.Equal(t, other.UnixNano(), s.of(other))
}
