package hooks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counting is a feed of batches that hold their numbers, and the largest step that was begun.
func counting(instances, steps int) (f Feed, begun *atomic.Int64) {
	begun = &atomic.Int64{}
	return Feed{Steps: steps, Instances: instances, Start: Position{Step: 2, Batch: 5},
		Read: func(p Position) (*hook.Batch, error) {
			for {
				if old := begun.Load(); int64(p.Step) <= old || begun.CompareAndSwap(old, int64(p.Step)) {
					return &hook.Batch{Step: int(p.Batch)}, nil
				}
			}
		},
		Finish: func(_ Position, b *hook.Batch) engine.Batch { return engine.Batch{"number": []byte{byte(b.Step)}} }}, begun
}

// Batches come in order, to several callers, and the feeder is at most Instances steps ahead.
func TestFeederRunsAhead(t *testing.T) {
	for _, instances := range []int{1, 3} {
		f, begun := counting(instances, 50)
		d := newFeeder(f, nil)
		for step := 2; step < 50; step++ {
			for range 2 { // each rank asks
				b, err := d.Batch(int64(step))
				require.NoError(t, err)
				assert.Equal(t, byte(step+3), b["number"][0])
			}
			assert.Eventually(t, func() bool { return begun.Load() >= min(49, int64(step+1)) }, time.Hour, time.Millisecond,
				"it runs ahead")
			assert.LessOrEqual(t, begun.Load(), int64(step+1+instances))
			d.Release(step)
			next, _ := d.Cursor(step)
			assert.EqualValues(t, step+3, next)
		}
		assert.LessOrEqual(t, len(d.slots), 1+instances, "released steps are forgotten")
		_, err := d.Batch(3)
		assert.EqualError(t, err, "batch 3 is released")
		d.Close()
	}
	assertNoFeeders(t)
}

// An error in a step fails that step and all later ones.
func TestFeederFails(t *testing.T) {
	f, _ := counting(4, 50)
	good := f.Read
	f.Read = func(p Position) (*hook.Batch, error) {
		if p.Step >= 9 {
			return nil, fmt.Errorf("no data for step %d", p.Step)
		}
		return good(p)
	}
	d := newFeeder(f, nil)
	defer d.Close()
	for _, step := range []int64{11, 9, 10} {
		_, err := d.Batch(step)
		assert.EqualError(t, err, "no data for step 9")
	}
	_, err := d.Batch(8)
	assert.NoError(t, err)
	assertNoFeeders(t)
}

// Close does not wait for a requested batch, and a wait for a batch ends with Close.
func TestFeederClosed(t *testing.T) {
	f, _ := counting(2, 50)
	stuck := make(chan struct{})
	good := f.Read
	f.Read = func(p Position) (*hook.Batch, error) {
		if p.Step == 4 {
			<-stuck
		}
		return good(p)
	}
	d := newFeeder(f, nil)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := d.Await(ctx, 5)
	assert.ErrorIs(t, err, context.Canceled)
	failed := make(chan error)
	go func() {
		_, err := d.Batch(4)
		failed <- err
	}()
	time.AfterFunc(10*time.Millisecond, func() { close(stuck) })
	d.Close()
	if err := <-failed; err != nil { // else it was there just in time
		assert.True(t, errors.Is(err, errClosed), "%v", err)
	}
	_, err = d.Batch(49)
	assert.ErrorIs(t, err, errClosed)
	assertNoFeeders(t)
}

// assertNoFeeders fails if a goroutine of a Feeder is left.
func assertNoFeeders(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	assert.NotContains(t, string(stacks), "hooks.(*Feeder)")
}
