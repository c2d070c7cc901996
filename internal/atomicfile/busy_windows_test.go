package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A file that another program has open is replaced once it is closed.
func TestReplacesWhatWasOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "x")
	fill := func(dir string) error { return os.WriteFile(filepath.Join(dir, "x"), []byte("new"), 0o666) }
	for _, write := range []func() error{
		func() error {
			return Write(path, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err })
		},
		func() error { return WriteFolder(filepath.Dir(path), true, fill) },
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
		f, err := os.Open(path)
		require.NoError(t, err)
		assert.True(t, Busy(os.Rename(path, path+"-elsewhere")))
		time.AfterFunc(300*time.Millisecond, func() { f.Close() })
		require.NoError(t, write())
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "new", string(content))
	}
	assert.Equal(t, []string{"a"}, names(t, dir))
}

// A folder in which a program has an open file, or which is its current folder, is replaced whole or stays whole.
// Windows refuses to rename such a folder. Wine refuses only where it is the current folder.
func TestBusyFolderIsReplacedWholeOrNotAtAll(t *testing.T) {
	for name, enter := range map[string]func(t *testing.T, path string){
		"file": func(t *testing.T, path string) {
			f, err := os.Open(filepath.Join(path, "x"))
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
		},
		"current folder": func(t *testing.T, path string) { t.Chdir(path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a")
			fill := func(content string, files ...string) func(dir string) error {
				return func(dir string) (err error) {
					for _, f := range files {
						err = errors.Join(err, os.WriteFile(filepath.Join(dir, f), []byte(content), 0o666))
					}
					return err
				}
			}
			require.NoError(t, WriteFolder(path, false, fill("old", "x", "y")))
			enter(t, path)
			err := WriteFolder(path, true, fill("new", "x", "z"))
			want, content := []string{"x", "z"}, "new"
			if err != nil {
				require.ErrorContains(t, err, "a program may have a file of the folder open")
				want, content = []string{"x", "y"}, "old"
				assert.Equal(t, []string{"a"}, names(t, dir))
			} else {
				require.NotEqual(t, "current folder", name, "the folder of a program was renamed")
			}
			assert.Equal(t, want, names(t, path))
			for _, f := range want {
				found, err := os.ReadFile(filepath.Join(path, f))
				require.NoError(t, err)
				assert.Equal(t, content, string(found))
			}
		})
	}
}
