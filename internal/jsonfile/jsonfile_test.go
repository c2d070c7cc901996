package jsonfile

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, Write(path, map[string][]int{"x": {1}}, " "))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "{\n \"x\": [\n  1\n ]\n}\n", string(text))
	assert.ErrorContains(t, Write(path, math.NaN(), " "), path)
	known, err := ReadCache[[]int](path)
	require.NoError(t, err)
	assert.Equal(t, map[string][]int{"x": {1}}, known)
}

func TestReadCacheWithoutAWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	known, err := ReadCache[int](path)
	require.NoError(t, err)
	assert.NotNil(t, known)
	for _, text := range []string{"{torn", "", "null", "[]", `{"a": 1, "x": "y"}`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		known, err := ReadCache[int](path)
		require.NoError(t, err)
		assert.Equal(t, map[string]int{}, known, text)
	}
	_, err = ReadCache[int](filepath.Dir(path))
	assert.Error(t, err, "a folder")
}
