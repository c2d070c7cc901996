package lock

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneHolderAtATime(t *testing.T) {
	dir := t.TempDir()
	release, err := Folder(dir)
	require.NoError(t, err)
	_, err = Folder(dir)
	assert.ErrorIs(t, err, ErrHeld)
	assert.ErrorContains(t, err, dir+" is in use by another process")
	release()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, files)
	release, err = Folder(dir)
	require.NoError(t, err)
	release()
}

// A file that a killed process left does not hold the lock.
func TestALeftFileIsNoLock(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
	release, err := Folder(dir)
	require.NoError(t, err)
	release()
}

func TestFolderThatIsNone(t *testing.T) {
	_, err := Folder(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// Releasing removes the file, which must not let two in.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	var inside, entered atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				release, err := Folder(dir)
				if err != nil {
					assert.ErrorIs(t, err, ErrHeld)
					continue
				}
				assert.Equal(t, int32(1), inside.Add(1))
				entered.Add(1)
				inside.Add(-1)
				release()
			}
		})
	}
	all.Wait()
	assert.Positive(t, entered.Load())
}
