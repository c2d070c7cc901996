package codecache

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

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
	if os.Getuid() == 0 { // who may remove everything
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		require.NoError(t, syscall.Setfsuid(65534))
		defer syscall.Setfsuid(0)
	}
	require.Error(t, os.Remove(left))
	c, err := Open(dir)
	require.NoError(t, err)
	assert.FileExists(t, left)
	require.NoError(t, c.Seal())
	require.NoError(t, c.Clear())
}
