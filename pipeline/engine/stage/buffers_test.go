package stage

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newBatch(number int) *batch { return &batch{number: number, gradients: -1, left: 1} }

// Without a delay, a batch updates its weights in place, and the buffer of gradients is free again.
func TestBuffersWithoutDelay(t *testing.T) {
	b := newBuffers(Roles{Older: 4, Newest: 4, Gradients: 7}, 0, 0)
	for number := range 3 {
		x := newBatch(number)
		b.begin(x)
		require.True(t, b.claim(x))
		assert.False(t, b.claim(x), "it has a buffer already")
		assert.Equal(t, []int{4, 7}, []int{x.weights, x.gradients})
		require.NoError(t, b.check([]*batch{x}))
		x.left = 0
		before, after := b.exchange([]*batch{x})
		assert.Equal(t, []Place{{4, 7, -1, -1}, {4, -1, -1, -1}}, []Place{before, after})
		b.finish(x)
		require.NoError(t, b.check(nil))
		assert.Equal(t, Roles{Older: 4, Newest: 4, Gradients: 7}, b.roles())
	}
}

// With a delay and all microbatches stale, x_{t+1} = x_t − u_t replaces g_t, and the buffer of x_{t−1} takes g_{t+1}.
func TestBuffersWithDelay(t *testing.T) {
	b := newBuffers(Roles{Older: 0, Newest: 1, Gradients: 2}, 1, 1)
	first, second := newBatch(0), newBatch(1)
	b.begin(first)
	b.begin(second)
	require.True(t, b.claim(first))
	assert.False(t, b.claim(second), "the buffer of gradients is taken")
	assert.Equal(t, []int{0, 1}, []int{first.weights, second.weights})
	require.NoError(t, b.check([]*batch{first, second}))

	first.left = 0
	b.endStale(first)
	require.True(t, b.claim(second))
	assert.Equal(t, first.weights, second.gradients)
	require.NoError(t, b.check([]*batch{first, second}))

	before, after := b.exchange([]*batch{first, second})
	assert.Equal(t, Place{Weights: second.weights, Gradients: 2, Slot: -1, Scale: -1}, before)
	assert.Equal(t, Place{Weights: 2, Gradients: -1, Slot: -1, Scale: -1}, after)
	b.finish(first)
	second.left = 0
	b.endStale(second)
	before, after = b.exchange([]*batch{second}) // no later batch has begun
	assert.Equal(t, []Place{{2, 0, -1, -1}, {0, -1, -1, -1}}, []Place{before, after})
	b.finish(second)
	require.NoError(t, b.check(nil))
	assert.Equal(t, Roles{Older: 2, Newest: 0, Gradients: 1}, b.roles())
}

// With one of two microbatches stale, the second reads the weights that the stale one of the next batch reads.
func TestBuffersOfPartlyStaleBatches(t *testing.T) {
	b := newBuffers(Roles{Older: 0, Newest: 1, Gradients: 2}, 1, 1)
	first, second := newBatch(0), newBatch(1)
	first.left, second.left = 2, 2
	b.begin(first)
	require.True(t, b.claim(first))
	assert.Equal(t, 1, b.current(first, []*batch{first}), "x_0 before batch 1 begins")
	b.begin(second)
	both := []*batch{first, second}
	assert.Equal(t, 1, b.current(first, both), "x_0 is what batch 1 reads if stale")
	assert.Equal(t, -1, b.current(second, both), "x_1 is not made yet")

	b.endStale(first)
	require.NoError(t, b.check(both))
	require.True(t, b.claim(second), "x_{−1} is free before batch 0 ends")
	assert.Equal(t, 0, second.gradients)
	before, after := b.exchange(both)
	assert.Equal(t, []Place{{1, 2, -1, -1}, {2, -1, -1, -1}}, []Place{before, after})
	b.finish(first)
	assert.Equal(t, 2, b.current(second, []*batch{second}), "x_1 replaces g_0")
}

func TestBuffersOfAnEvaluation(t *testing.T) {
	b := newBuffers(Roles{Older: 3, Newest: 3, Gradients: 5}, 0, 0)
	x := newBatch(0)
	x.evaluates = true
	b.begin(x)
	assert.False(t, b.claim(x))
	assert.Equal(t, 3, x.weights)
	require.NoError(t, b.check([]*batch{x}))
	b.finish(x)
	assert.Equal(t, Roles{Older: 3, Newest: 3, Gradients: 5}, b.roles())
}

func TestBuffersClash(t *testing.T) {
	b := newBuffers(Roles{Older: 0, Newest: 1, Gradients: 2}, 1, 1)
	x := newBatch(0)
	b.begin(x)
	require.NoError(t, b.check([]*batch{x}))
	x.weights = 1
	require.EqualError(t, b.check([]*batch{x}), "buffers clash: weights [1 1], 0 of gradients, free [2]")
	require.Error(t, b.check(nil), "a buffer without a role")
}

func TestSlots(t *testing.T) {
	s := make(slots, 2)
	assert.Equal(t, -1, s.find(0, 0), "a free slot is no microbatch's")
	require.True(t, s.take(0, 0, 2))
	require.True(t, s.take(0, 1, 1))
	assert.False(t, s.take(1, 0, 1))
	assert.Equal(t, []int{0, 1, -1}, []int{s.find(0, 0), s.find(0, 1), s.find(1, 0)})
	s.release(0)
	assert.Equal(t, 0, s.find(0, 0), "one of two uses is left")
	s.release(1)
	assert.Equal(t, -1, s.find(0, 1))
	require.True(t, s.take(1, 0, 1))
	assert.Equal(t, 1, s.find(1, 0))
}
