package train

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counting is a feed of batches that hold their numbers, and the largest step that was begun.
func counting(instances, steps int) (f feed, begun *atomic.Int64) {
	begun = &atomic.Int64{}
	return feed{steps: steps, instances: instances, first: standing{place: place{step: 2, batch: 5}},
		begin: func(p place) (*hook.Batch, error) {
			for {
				if old := begun.Load(); int64(p.step) <= old || begun.CompareAndSwap(old, int64(p.step)) {
					return &hook.Batch{Step: int(p.batch)}, nil
				}
			}
		},
		end: func(b *hook.Batch) engine.Batch { return engine.Batch{"number": []byte{byte(b.Step)}} }}, begun
}

// Batches come in order, to several at a time, and not further ahead than there are instances.
func TestAFeederIsAheadAndNotFar(t *testing.T) {
	for _, instances := range []int{1, 3} {
		f, begun := counting(instances, 50)
		d := newFeeder(f)
		for step := 2; step < 50; step++ {
			for range 2 { // each line asks
				b, err := d.Batch(int64(step))
				require.NoError(t, err)
				assert.Equal(t, byte(step+3), b["number"][0])
			}
			assert.Eventually(t, func() bool { return begun.Load() >= min(49, int64(step+1)) }, time.Hour, time.Millisecond, "it is ahead")
			assert.LessOrEqual(t, begun.Load(), int64(step+1+instances))
			d.release(step)
			next, _ := d.stood(step)
			assert.EqualValues(t, step+3, next)
		}
		assert.LessOrEqual(t, len(d.slots), 1+instances, "what was released is forgotten")
		d.close()
	}
	assertNoFeeders(t)
}

// What goes wrong with a step is told of that step, and of those after it.
func TestAFeederThatFails(t *testing.T) {
	f, _ := counting(4, 50)
	good := f.begin
	f.begin = func(p place) (*hook.Batch, error) {
		if p.step >= 9 {
			return nil, fmt.Errorf("no data for step %d", p.step)
		}
		return good(p)
	}
	d := newFeeder(f)
	defer d.close()
	for _, step := range []int64{11, 9, 10} {
		_, err := d.Batch(step)
		assert.EqualError(t, err, "no data for step 9")
	}
	_, err := d.Batch(8)
	assert.NoError(t, err)
	assertNoFeeders(t)
}

// A run that ends waits for nobody: neither does one who waits for a batch.
func TestAFeederThatIsClosed(t *testing.T) {
	f, _ := counting(2, 50)
	stuck := make(chan struct{})
	good := f.begin
	f.begin = func(p place) (*hook.Batch, error) {
		if p.step == 4 {
			<-stuck
		}
		return good(p)
	}
	d := newFeeder(f)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := d.await(ctx, 5)
	assert.ErrorIs(t, err, context.Canceled)
	told := make(chan error)
	go func() {
		_, err := d.Batch(4)
		told <- err
	}()
	time.AfterFunc(10*time.Millisecond, func() { close(stuck) })
	d.close()
	if err := <-told; err != nil { // else it was there just in time
		assert.True(t, errors.Is(err, errClosed), "%v", err)
	}
	_, err = d.Batch(49)
	assert.ErrorIs(t, err, errClosed)
	assertNoFeeders(t)
}
