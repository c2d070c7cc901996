package trace

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A summary counts the exchanges of replicas, and says how long stages waited for them and what would help.
func TestExchangesOfATrace(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0:                      "exchanges: 2, at most 3 steps late; none was waited for",
		500 * time.Millisecond: "exchanges: 2, at most 3 steps late; 2 times one was waited for, 25.0 % of the time of replica 1: a larger pipeline.outer.late",
	} {
		path := filepath.Join(t.TempDir(), FileName)
		w, err := Create(path, "p")
		require.NoError(t, err)
		w.Tracks("replica 0", "replica 1", ExchangeTrack)
		at := func(second float64) time.Time { return w.start.Add(time.Duration(second * float64(time.Second))) }
		for batch, track := range []string{"replica 0", "replica 1"} {
			w.Complete(track, Forward, "F0", at(0), time.Second, map[string]any{"batch": batch})
			w.Complete(track, Forward, "F1", at(3), time.Second, map[string]any{"batch": batch + 1})
			w.Complete(ExchangeTrack, Exchange, "exchange head", at(1), time.Millisecond, map[string]any{"step": 4 * batch, "lands": 4*batch + 3, "bytes": int64(100)})
			if wait > 0 {
				w.Complete(track, Wait, ExchangeWait+"head", at(1), wait*time.Duration(batch+1), nil)
			}
		}
		require.NoError(t, w.Close())
		s, err := Summarize(path)
		require.NoError(t, err)
		require.NotNil(t, s.Exchanges)
		assert.Len(t, s.Stages, 2)
		assert.Equal(t, int64(200), s.Exchanges.Bytes)
		require.Len(t, s.Advice(), 1)
		assert.Contains(t, s.Advice()[0], want)
	}
}
