package atomicfile

import (
	"io"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWindowsFault(t *testing.T) {
	for _, path := range []string{"a", `runs\a`, "/runs/a.b/c", "..", `..\.\a`, "console", "nulls.txt", "com", "com10", "a b", ".a", "日本", ""} {
		assert.Empty(t, windowsFault(path), path)
	}
	for path, want := range map[string]string{
		"NUL": `"NUL", the name of a device`, "runs/con": "device", `a\Aux.txt\b`: "device", "com1 .x": "device", "LPT¹": "device", "conin$": "device",
		"runs/10:30": `"10:30" with one of`, "a?": "with one of", "a\x01": "with one of",
		"runs/a.": "ends in a dot", "a /b": "ends in a dot or a space", "...": "ends in a dot",
	} {
		assert.Contains(t, windowsFault(path), want, path)
	}
}

// Nothing is written to a device or a stream.
func TestNamesOfWindows(t *testing.T) {
	empty := func(io.Writer) error { return nil }
	for _, name := range []string{"a:b", "nul.txt", "a."} {
		for _, err := range []error{Write(filepath.Join(t.TempDir(), name), empty),
			WriteFolder(filepath.Join(t.TempDir(), name), false, func(string) error { return nil })} {
			if runtime.GOOS == "windows" {
				assert.ErrorContains(t, err, "expected a name that Windows can give to a file")
			} else {
				assert.NoError(t, err)
			}
		}
	}
}
