package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writeParts writes a model of three tensors in as many parts.
func writeParts(t *testing.T, dir string) (paths []string) {
	for i, name := range []string{"a", "b", "c"} {
		keys := []Key{{splitNumber, uint32(i)}, {splitCount, uint32(3)}, {splitTensors, int32(3)}}
		if i == 0 {
			keys = append(keys, Key{"general.architecture", "llama"})
		}
		var out bytes.Buffer
		require.NoError(t, Write(&out, keys, []Entry{entry(name, F32, []float32{float32(i), 1}, 2)}))
		paths = append(paths, filepath.Join(dir, partPath("m-00001-of-00003.gguf", i+1, 3)))
		require.NoError(t, os.WriteFile(paths[i], out.Bytes(), 0o666))
	}
	return paths
}

func TestParts(t *testing.T) {
	paths := writeParts(t, t.TempDir())
	for _, path := range paths {
		f, err := Open(path)
		require.NoError(t, err)
		assert.Len(t, f.Tensors(), 3)
		for i, name := range []string{"a", "b", "c"} {
			x, err := f.Float32(name)
			require.NoError(t, err)
			assert.Equal(t, []float32{float32(i), 1}, x)
		}
		arch, _ := f.Key("general.architecture")
		assert.Equal(t, "llama", arch)
		require.NoError(t, f.Close())
	}
}

func TestPartsRefuse(t *testing.T) {
	refused := func(want string, change func(paths []string) (open string)) {
		t.Helper()
		_, err := Open(change(writeParts(t, t.TempDir())))
		require.ErrorContains(t, err, want)
	}
	refused("m-00002-of-00003.gguf: missing, expected the 3 parts", func(p []string) string {
		require.NoError(t, os.Remove(p[1]))
		return p[2]
	})
	refused("part 3 by its split.no, expected part 2", func(p []string) string {
		require.NoError(t, os.Rename(p[2], p[1]))
		return p[0]
	})
	refused("expected a name that ends in -00001-of-00003.gguf", func(p []string) string {
		other := filepath.Join(filepath.Dir(p[0]), "model.gguf")
		require.NoError(t, os.Rename(p[0], other))
		return other
	})
	refused("part 2 of 3, expected the first one", func(p []string) string {
		other := filepath.Join(filepath.Dir(p[0]), "model.gguf")
		require.NoError(t, os.Rename(p[1], other))
		return other
	})
	refused("a Git LFS pointer", func(p []string) string {
		require.NoError(t, os.WriteFile(p[1], []byte("version https://git-lfs.github.com/spec/v1\n"), 0o666))
		return p[0]
	})
}
