package member

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that the coordinator no longer wants ends before it opens the next device. The one after it is served.
func TestRequestsAreInterrupted(t *testing.T) {
	opening, release := make(chan struct{}), make(chan struct{})
	opened := 0
	m := New(Options{ID: "a", Note: t.Logf, OpenDevice: func(string) (device.Device, error) {
		opened++
		close(opening)
		<-release
		return null.New(null.Options{}), nil
	}})
	place := protocol.Place{Member: "a", Device: "null:0"}
	config := traintest.Demo(t, t.TempDir(), "pipeline.stages=2")
	q, err := json.Marshal(protocol.PlanRequest{Task: protocol.Task{Config: string(config.YAML())}, Epoch: 1, Cut: []int{1},
		Recompute: []bool{false, false}, Ranks: []protocol.Place{place, place}})
	require.NoError(t, err)
	planned := make(chan error, 1)
	go func() {
		_, err := m.Request(t.Context(), protocol.Plan, q)
		planned <- err
	}()
	<-opening
	m.Interrupt()
	close(release)
	require.ErrorIs(t, <-planned, errInterrupted)
	assert.Equal(t, 1, opened)
	_, err = m.Request(t.Context(), protocol.Release, []byte("{}"))
	require.NoError(t, err)
}

// A certificate that is due when a computer has slept is renewed at once.
func TestRenewalAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		due, renewed := time.Now().Add(16*time.Hour), 0
		o := ProcessOptions{Renew: func(context.Context) error {
			renewed, due = renewed+1, time.Now().Add(16*time.Hour)
			return nil
		}}
		go renew(ctx, func() time.Time { return due }, o)
		time.Sleep(15 * time.Hour)
		synctest.Wait()
		assert.Zero(t, renewed)
		due = time.Now() // an hour of sleep, in which timers stand still
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.Equal(t, 1, renewed)
		cancel()
	})
}
