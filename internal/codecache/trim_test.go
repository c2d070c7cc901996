package codecache

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	path := func(i int) string { return filepath.Join(dir, fmt.Sprint("kernel-", i)) }
	left := func() (numbers []int) {
		for i := range 100 {
			if Read(path(i)) != nil {
				numbers = append(numbers, i)
			}
		}
		return numbers
	}
	age := func(path string, d time.Duration) {
		then := time.Now().Add(-d)
		require.NoError(t, os.Chtimes(path, then, then))
	}
	for i := range 8 {
		require.NoError(t, Write(path(i), make([]byte, 100)))
		age(path(i), time.Duration(100-i)*time.Hour)
	}
	for _, name := range []string{".lock-kernel-1", temporary + "1"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<20), 0o600))
		age(filepath.Join(dir, name), 1000*time.Hour)
	}
	const limit = 8 * blockBytes
	Trim(dir, limit)
	assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, left(), "they are within the limit")

	require.NoError(t, Write(path(8), make([]byte, 100)))
	Trim(dir, limit)
	assert.Len(t, left(), 9, "the last trim is no hour ago")
	age(filepath.Join(dir, trimMark), 2*time.Hour)
	require.NotNil(t, Use(path(0)), "it is used now")
	Trim(dir, limit)
	assert.Equal(t, []int{0, 4, 5, 6, 7, 8}, left())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 6+3, "locks, files in progress and the mark stay")

	assert.Nil(t, Use(path(1)))
	require.NoError(t, os.WriteFile(path(1), []byte("damaged"), 0o600))
	assert.Nil(t, Use(path(1)))
	Trim(filepath.Join(dir, "none"), limit)
}

// Several processes may read, write and trim at once: what is read is whole.
func TestTrimDuringUse(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 200 {
				path := filepath.Join(dir, fmt.Sprint("kernel-", i%20))
				if data := Use(path); data != nil {
					assert.Len(t, data, 50)
				}
				assert.NoError(t, Write(path, make([]byte, 50)))
				trim(dir, 10*blockBytes)
			}
		})
	}
	all.Wait()
	trim(dir, 10*blockBytes)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(entries), 10)
}
