package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// holding fills a folder with one file.
func holding(text string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text), 0o666) }
}

func text(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "a.txt"))
	require.NoError(t, err)
	return string(b)
}

func TestWriteFolder(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "x", "y", "out")
	require.NoError(t, WriteFolder(path, false, holding("first")))
	assert.Equal(t, "first", text(t, path))
	assert.Error(t, WriteFolder(path, false, holding("second")), "it is there and not empty")
	assert.Equal(t, "first", text(t, path))
	require.NoError(t, WriteFolder(path+"/", true, holding("third")))
	assert.Equal(t, "third", text(t, path))
	assert.Equal(t, []string{"out"}, names(t, filepath.Dir(path)), "nothing is left beside it")

	empty := filepath.Join(top, "empty")
	require.NoError(t, os.Mkdir(empty, 0o777))
	require.NoError(t, WriteFolder(empty, false, holding("fourth")))
	assert.Equal(t, "fourth", text(t, empty))

	t.Chdir(empty)
	require.NoError(t, WriteFolder(".", true, holding("fifth")))
	assert.Equal(t, "fifth", text(t, empty))
}

func TestWriteFolderFails(t *testing.T) {
	top := t.TempDir()
	broken := errors.New("the disk is full")
	fail := func(dir string) error { return errors.Join(holding("half")(dir), broken) }
	path := filepath.Join(top, "x", "y", "out")
	err := WriteFolder(path, false, fail)
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, path)
	assert.Empty(t, names(t, top), "parents that were made go too")

	require.NoError(t, WriteFolder(path, false, holding("old")))
	require.ErrorIs(t, WriteFolder(path, true, fail), broken)
	assert.Equal(t, "old", text(t, path))
	assert.Equal(t, []string{"out"}, names(t, filepath.Dir(path)))

	file := filepath.Join(path, "a.txt") // a file in the way of the folder, or of its parent
	assert.Error(t, WriteFolder(file, true, holding("new")))
	assert.Error(t, WriteFolder(filepath.Join(file, "out"), true, holding("new")))
	assert.Equal(t, []string{"a.txt"}, names(t, path))
	assert.Equal(t, "old", text(t, path))
}
