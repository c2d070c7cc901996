package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func names(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWriteReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	for _, text := range []string{"first and long", "second"} {
		require.NoError(t, Write(path, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, text, string(got))
	}
	assert.Equal(t, []string{"a.txt"}, names(t, dir))
}

func TestFailureKeepsOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	broken := errors.New("the disk is full")
	err := Write(path, func(w io.Writer) error {
		io.WriteString(w, "half of the n")
		return broken
	})
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, path)
	got, _ := os.ReadFile(path)
	assert.Equal(t, "old", string(got))
	assert.Equal(t, []string{"a.txt"}, names(t, dir))

	// A rename that fails (the target is a folder) leaves nothing either.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	require.Error(t, Write(filepath.Join(dir, "d"), func(io.Writer) error { return nil }))
	assert.Equal(t, []string{"a.txt", "d"}, names(t, dir))
}

func TestMissingFolder(t *testing.T) {
	err := Write(filepath.Join(t.TempDir(), "no", "a.txt"), func(io.Writer) error { return nil })
	require.ErrorIs(t, err, os.ErrNotExist)
	if runtime.GOOS != "windows" { // which cannot sync folders
		require.ErrorIs(t, SyncDir(filepath.Join(t.TempDir(), "no")), os.ErrNotExist)
	}
}
