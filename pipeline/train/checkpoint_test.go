package train

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
)

func TestNewestCheckpoint(t *testing.T) {
	k := &checkpoints{dir: t.TempDir(), saved: noCheckpoint}
	assert.False(t, k.any())
	assert.Equal(t, "there is no checkpoint yet", k.kept())

	k.found(start{step: 0, checkpoint: "step-0"}) // the first step counts too
	assert.True(t, k.any())
	k.found(start{step: 4, checkpoint: "step-4", pending: &Progress{Step: 4}})
	assert.Equal(t, "the checkpoint of step 4 is kept", k.kept())
	assert.True(t, k.unreported)

	require.NoError(t, k.open(1))
	assert.Nil(t, k.await())
	k.write(checkpoint.Contents{}, state{Step: 6}, 2)
	assert.Equal(t, 4, k.saved) // until it is awaited
	w := k.await()
	require.NoError(t, w.err)
	saved := w.saved
	assert.Equal(t, 6, saved.Step)
	assert.Equal(t, checkpoints{dir: k.dir, store: k.store, saved: 6, newest: saved.Dir, skipped: 2}, *k)
	var s state
	require.NoError(t, saved.State(&s))
	assert.Equal(t, 6, s.Step)

	k.forget()
	assert.False(t, k.any())
	assert.Empty(t, k.newest)
	assert.Equal(t, 2, k.skipped) // a run that starts at the checkpoint has skipped them
}

// A checkpoint that cannot be written leaves the one before as the newest.
func TestNewestCheckpointAfterAFailedSave(t *testing.T) {
	k := &checkpoints{dir: t.TempDir()}
	require.NoError(t, k.open(1))
	k.found(start{step: 2, checkpoint: filepath.Join(k.dir, "step-2")})
	before := *k
	broken := checkpoint.Contents{Model: []checkpoint.Tensor{{Name: "w", DType: "F32", Shape: []int{1}, Data: func() ([]byte, error) {
		return nil, assert.AnError
	}}}}
	assert.False(t, k.failed())
	k.write(broken, state{Step: 3}, 1)
	require.Eventually(t, k.failed, time.Minute, time.Millisecond) // training ends then
	w := k.await()
	assert.False(t, k.failed())
	assert.Nil(t, w.saved)
	require.ErrorIs(t, w.err, assert.AnError)
	assert.Equal(t, before, *k)
}
