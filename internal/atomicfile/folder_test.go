package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

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

	if runtime.GOOS == "windows" {
		return // the working directory is in use there
	}
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

// What killed processes left goes after a day; what a living one writes stays, however long it takes, and so does what
// is not a temporary file of this path.
func TestLeftOversAreSweptAway(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("without locks folders stay")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	age := func(name string, age time.Duration) {
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Now().Add(-age)))
	}
	left := func(name string, old time.Duration) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "x"), nil, 0o666))
		age(name, old)
	}
	left(".a.tmp-AAAAAAAAAA", 25*time.Hour)
	left(".a.tmp-BBBBBBBBBB", 23*time.Hour)
	left(".a.old-CCCCCCCCCC", 25*time.Hour)
	left(".a.tmp-notes", 25*time.Hour)
	left(".b.tmp-DDDDDDDDDD", 25*time.Hour)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".a.tmp-EEEEEEEEEE"), nil, 0o666))
	age(".a.tmp-EEEEEEEEEE", 25*time.Hour)
	stay := []string{".a.old-CCCCCCCCCC", ".a.tmp-BBBBBBBBBB", ".a.tmp-notes", ".b.tmp-DDDDDDDDDD"}

	require.NoError(t, Write(path, func(w io.Writer) error {
		mine, err := filepath.Glob(filepath.Join(dir, ".a.tmp-??????????"))
		require.NoError(t, err)
		require.Len(t, mine, 2, "the young one, and this")
		for _, m := range mine {
			if name := filepath.Base(m); name != ".a.tmp-BBBBBBBBBB" {
				age(name, 48*time.Hour)
			}
		}
		return Write(path, func(io.Writer) error { return nil }) // as another process would
	}), "it was not taken away")
	assert.Equal(t, append(stay, "a"), names(t, dir))
	require.NoError(t, os.Remove(path))

	require.NoError(t, WriteFolder(path, false, func(tmp string) error {
		age(filepath.Base(tmp), 48*time.Hour)
		sweep(dir, "a", "tmp")
		return holding("new")(tmp)
	}))
	assert.Equal(t, append(stay, "a"), names(t, dir), "it may be all that is left of what was there")
	require.NoError(t, WriteFolder(path, true, holding("newer")))
	assert.Equal(t, append(stay[1:], "a"), names(t, dir))
}

// A temporary folder is its owner's until that removes it; what killed processes left of others goes.
func TestTemporary(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("without locks folders stay")
	}
	all := t.TempDir()
	t.Setenv("TMPDIR", all)
	var mine []string
	for range 2 {
		dir, remove, err := Temporary("work")
		require.NoError(t, err)
		defer func() { require.NoError(t, remove()); assert.NoDirExists(t, dir) }()
		require.Empty(t, names(t, dir))
		info, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
		mine = append(mine, dir)
	}
	left := filepath.Join(all, ".work.tmp-AAAAAAAAAA")
	require.NoError(t, os.MkdirAll(filepath.Join(left, "deep"), 0o700))
	for _, dir := range append(mine, left) {
		require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-25*time.Hour)))
	}
	_, remove, err := Temporary("work")
	require.NoError(t, err)
	require.NoError(t, remove())
	assert.NoDirExists(t, left)
	for _, dir := range mine {
		assert.DirExists(t, dir)
	}
	t.Setenv("TMPDIR", filepath.Join(all, "none"))
	_, _, err = Temporary("work")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
