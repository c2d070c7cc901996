package placeholder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n": `found a Git LFS pointer of 64 bytes in place of the file: run "git lfs pull"`,
		"../blobs/none":                       `found the text "../blobs/none" in place of the file: a symbolic link`,
		"/home/a/model.bin\n":                 `found the text "/home/a/model.bin"`,
		"\n <!DOCTYPE html><html>":            "found a page of the web (HTML)",
		"":                                    "",
		"{\"a\": 1}":                          "",
		"../a b":                              "",
		"GGUF\x03\x00":                        "",
		"/" + strings.Repeat("a", headBytes):  "",
		"a relative path needs ./ or ../ a/b": "",
	} {
		err := CheckBytes([]byte(text))
		if want == "" {
			assert.NoError(t, err, "%q", text)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}

func TestCheckFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, CheckFile(path))
	require.NoError(t, os.WriteFile(path, []byte("../blobs/a"), 0o666))
	require.ErrorContains(t, CheckFile(path), "symbolic link")
}
