package codecache

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFilesAreWholeOrNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	assert.Nil(t, Read(path))
	for _, data := range []string{"first and long", "second", ""} {
		require.NoError(t, Write(path, []byte(data)))
		assert.Equal(t, data, string(Read(path)))
	}
	require.NoError(t, Write(path, []byte("content")))
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := range whole {
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 1
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		assert.Nil(t, Read(path), i)
		require.NoError(t, os.WriteFile(path, whole[:i], 0o600))
		assert.Nil(t, Read(path), i)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	assert.Error(t, Write(filepath.Join(path, "below a file"), nil))
}

func TestOthersMayNotWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "cache")
	require.NoError(t, Make(dir))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, Make(dir))
	require.NoError(t, os.Chmod(dir, 0o770))
	assert.ErrorContains(t, Make(dir), "may be written to by others")
	_, err = Open(dir)
	assert.ErrorContains(t, err, "chmod go-w")
}

func TestFoldersOfOthers(t *testing.T) {
	dir := t.TempDir()
	info, err := os.Stat(dir)
	require.NoError(t, err)
	assert.False(t, foreign(info, os.Getuid()))
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(dir, 65534, 65534))
		assert.ErrorContains(t, Make(dir), "belongs to another user")
		return
	}
	if runtime.GOOS != "windows" {
		assert.True(t, foreign(info, os.Getuid()+1))
	}
}

func TestWrongSumsAreNotKept(t *testing.T) {
	dir := t.TempDir()
	module := filepath.Join(dir, "module")
	for _, wrong := range []string{"", "cut sho"} { // of a disk that was full
		require.NoError(t, os.WriteFile(module, []byte("code"), 0o600))
		require.NoError(t, os.WriteFile(module+SumSuffix, []byte(wrong), 0o600))
		c, err := Open(dir)
		require.NoError(t, err)
		assert.NoFileExists(t, module)
		require.NoError(t, os.WriteFile(module, []byte("code"), 0o600))
		require.NoError(t, c.Seal())
		_, err = Open(dir)
		require.NoError(t, err)
		assert.FileExists(t, module)
	}
}

// Files that killed processes left are removed once no process can be writing them.
func TestLeftFilesAreSweptAway(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "below"), 0o700))
	made := func(age time.Duration, names ...string) {
		for _, name := range names {
			path := filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
		}
	}
	made(25*time.Hour, ".new-1", "below/ab.2.tmp")
	made(23*time.Hour, "below/ab.4.tmp")
	_, err := Open(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{"ab.4.tmp"}, names(t, filepath.Join(dir, "below")))

	dir = t.TempDir()
	made(25*time.Hour, ".new-1", LockPrefix+"kernel-1", ".newer")
	made(23*time.Hour, ".new-2")
	require.NoError(t, Make(dir))
	assert.Equal(t, []string{".new-2", ".newer"}, names(t, dir))

	for i := range manyFiles {
		made(0, fmt.Sprint("without a sum", i))
	}
	c, err := Open(dir) // it sweeps the many files before it throws them away
	require.NoError(t, err)
	require.NoError(t, c.Seal())
	assert.Equal(t, []string{sweepMark}, names(t, dir), "the mark is no module")
	made(25*time.Hour, ".new-3")
	require.NoError(t, Make(dir))
	assert.Contains(t, names(t, dir), ".new-3", "within the hour")
	made(2*time.Hour, sweepMark)
	require.NoError(t, Make(dir))
	assert.NotContains(t, names(t, dir), ".new-3")
}

func names(t *testing.T, dir string) (out []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
