package codecache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/usertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A file that cannot be removed stays and does no harm.
func TestLeftFilesThatStay(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	require.NoError(t, os.Mkdir(below, 0o755))
	left := filepath.Join(below, "ab.2.tmp")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	require.NoError(t, os.Chtimes(left, time.Time{}, time.Now().Add(-25*time.Hour)))
	require.NoError(t, os.Chmod(below, 0o555))
	defer os.Chmod(below, 0o755)
	var errRemove, errOpen, errSeal, errClear error
	usertest.Unprivileged(t, dir, func() {
		errRemove = os.Remove(left)
		var c Dir
		if c, errOpen = Open(dir); errOpen == nil {
			errSeal, errClear = c.Seal(), c.Clear()
		}
	})
	require.ErrorIs(t, errRemove, os.ErrPermission)
	assert.NoError(t, errors.Join(errOpen, errSeal, errClear))
	assert.FileExists(t, left)
}
