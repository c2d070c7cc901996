package atomicfile

import (
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
