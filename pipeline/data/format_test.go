package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func gzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	z, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// documents are those of the fixtures: parquet/testdata, arrow/testdata and testdata/saved hold the same.
func documents(t testing.TB) (texts []string) {
	raw, err := os.ReadFile("parquet/testdata/texts.json")
	require.NoError(t, err)
	all := map[string][]*string{}
	require.NoError(t, json.Unmarshal(raw, &all))
	for _, s := range all["texts"] {
		texts = append(texts, *s)
	}
	return texts
}

// sameDocuments are files of the same documents in all formats.
func sameDocuments(t testing.TB) map[string][]string {
	dir := t.TempDir()
	var lines bytes.Buffer
	var texts, zipped []string
	var objects []map[string]any
	for i, text := range documents(t) {
		objects = append(objects, map[string]any{"n": i, "text": text})
		line, err := json.Marshal(map[string]any{"n": i, "text": text})
		require.NoError(t, err)
		lines.Write(append(line, '\n'))
		if text == "" {
			continue
		}
		texts = append(texts, filepath.Join(dir, fmt.Sprintf("%02d.txt", i)))
		require.NoError(t, os.WriteFile(texts[len(texts)-1], []byte(text), 0o644))
		zipped = append(zipped, filepath.Join(dir, fmt.Sprintf("%02d.txt.zst", i)))
		require.NoError(t, os.WriteFile(zipped[len(zipped)-1], zstded(t, []byte(text)), 0o644))
	}
	array, err := json.Marshal(objects)
	require.NoError(t, err)
	pretty, err := json.MarshalIndent(objects, "", "  ")
	require.NoError(t, err)
	half := bytes.LastIndexByte(lines.Bytes()[:lines.Len()/2], '\n') + 1
	frames := append(zstded(t, lines.Bytes()[:half]), zstded(t, lines.Bytes()[half:])...)
	members := append(gzipped(t, lines.Bytes()[:half]), gzipped(t, lines.Bytes()[half:])...)
	return map[string][]string{
		"text": texts, "text.zst": zipped,
		"jsonl":       {write(t, "a.jsonl", lines.String())},
		"jsonl.gz":    {write(t, "a.jsonl.gz", string(members))},
		"json.gz":     {write(t, "c4.00000-of-00001.json.gz", string(members))},
		"jsonl.zst":   {write(t, "a.jsonl.zst", string(frames))},
		"array":       {write(t, "a.json", "\uFEFF"+string(array))},
		"pretty":      {write(t, "a.JSON", string(pretty))},
		"array.gz":    {write(t, "a.ndjson.gz", string(gzipped(t, array)))},
		"objects":     {write(t, "a.json", strings.ReplaceAll(strings.Trim(string(pretty), "[]"), "\n  },", "\n  }"))},
		"CRLF":        {write(t, "a.jl", strings.ReplaceAll(lines.String(), "\n", "\r\n"))},
		"jsonlines":   {write(t, "a.jsonlines.zst", string(zstded(t, lines.Bytes())))},
		"parquet":     {"parquet/testdata/plain.parquet"},
		"arrow":       {"arrow/testdata/plain.arrow"},
		"saved":       {"testdata/saved"},
		"saved files": {"testdata/saved/*.arrow"},
	}
}

// TestFormatsGiveTheSameShards checks that shards depend on the documents only, and that they do if a run is resumed.
func TestFormatsGiveTheSameShards(t *testing.T) {
	var want map[string]string
	for _, name := range []string{"jsonl", "text", "text.zst", "jsonl.gz", "json.gz", "jsonl.zst", "array", "pretty", "array.gz", "objects",
		"CRLF", "parquet", "arrow", "saved", "saved files"} {
		files := sameDocuments(t)[name]
		dir := t.TempDir()
		o := PrepareOptions{Inputs: files, OutDir: dir, Tokenizer: wordTok{vocab: 5000}, ShardTokens: 500}
		prepare(t, o)
		got := folder(t, dir)
		delete(got, manifestName)
		require.Greater(t, len(got), 2, name)
		if want == nil {
			want = got
		}
		require.Equal(t, want, got, name)
		var m Manifest
		raw, err := os.ReadFile(filepath.Join(dir, manifestName))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &m))
		for n := range m.Shards { // as if it had been killed after n shards
			if n%4 != 1 {
				continue
			}
			cut := m
			cut.Shards, cut.Complete = m.Shards[:n], false
			require.NoError(t, cut.save(dir))
			prepare(t, o)
			again := folder(t, dir)
			delete(again, manifestName)
			require.Equal(t, want, again, "%s, resumed after %d shards", name, n)
		}
	}
}

func TestFormatsLoadTheSameTokens(t *testing.T) {
	var want []int32
	for name, files := range sameDocuments(t) {
		var done, total int64
		c, _, err := load(t, Options{Train: files, Tokenizer: wordTok{vocab: 5000}, Vocab: 5000,
			Progress: func(d, t int64) { done, total = d, t }})
		require.NoError(t, err, name)
		assert.Equal(t, total, done, name)
		if want == nil {
			want = tokensOf(t, c)
		}
		assert.Equal(t, want, tokensOf(t, c), name)
		assert.Equal(t, int64(39), c.Stats().Documents, name)
		mapped, _, err := load(t, Options{Train: files, Tokenizer: wordTok{vocab: 5000}, Vocab: 5000,
			Map: mapFunc(func(_ int64, text []byte) ([][]byte, error) {
				return [][]byte{text}, nil
			})})
		require.NoError(t, err, name)
		assert.Equal(t, want, tokensOf(t, mapped), name)
	}
}

func TestColumns(t *testing.T) {
	for _, file := range []string{"parquet/testdata/zstd.parquet", "arrow/testdata/zstd.arrow"} {
		nested, _, err := load(t, Options{Train: []string{file}, Field: "meta.source", Tokenizer: byteTok{}, Vocab: 256})
		require.NoError(t, err)
		assert.Contains(t, text(t, nested), "document 3\n")
		_, _, err = load(t, Options{Train: []string{file}, Field: "txt", Tokenizer: byteTok{}, Vocab: 256})
		err = FieldSetting(err, "--field")
		assert.ErrorContains(t, err, `no field "txt", found ["id (`)
		assert.ErrorContains(t, err, `"tags (list)"`)
		assert.ErrorContains(t, err, `"meta.source"]; --field names the field to read`)
		assert.ErrorContains(t, err, file)
	}
}

func TestSavedFolders(t *testing.T) {
	saved := func(state string) string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, savedState), []byte(state), 0o644))
		return dir
	}
	split := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(split, savedSplits), []byte(`{"splits": ["train", "test"]}`), 0o644))
	for dir, want := range map[string]string{
		saved(`{"_data_files": [{"filename": "../a.arrow"}]}`): "expected the name of an .arrow file",
		saved(`{"_data_files": [{"filename": "a.arrow"}]}`):    "a.arrow: no such file",
		saved(`{"_data_files": []}`):                           "lists no files",
		saved(`{`):                                             "unexpected end of JSON",
		saved(`{"_indices_files": [{"filename": "i.arrow"}]}`): "flatten_indices()",
		split:       "expected one of them, as " + filepath.Join(split, "train"),
		t.TempDir(): "a folder: expected files, a glob such as",
	} {
		_, err := Expand([]string{dir})
		assert.ErrorContains(t, err, want)
	}
}

// TestDamagedStreams checks that files that are cut, changed or made to expand are errors, in bounded memory.
func TestDamagedStreams(t *testing.T) {
	many := bytes.Repeat([]byte(`{"text": "`+strings.ReplaceAll(words(300), "\n", " ")+"\"}\n"), 50)
	bomb := bytes.Repeat([]byte(`{"text": "`+strings.Repeat("a", 4000)+`"}`+"\n"), 20<<10)
	long := bytes.Repeat([]byte("a"), 80<<20)
	var before, after runtime.MemStats
	for _, c := range []struct{ name, content, want string }{
		{"a.jsonl.gz", string(gzipped(t, many)[:100]), "gzip: the file is truncated"},
		{"a.jsonl.zst", string(zstded(t, many)[:100]), "zstd: the file is truncated"},
		{"a.txt.gz", string(gzipped(t, many)[:100]), "gzip: the file is truncated"},
		{"a.txt.zst", string(zstded(t, many)[:100]), "zstd: the file is truncated"},
		{"a.txt.zst", "plain text", "invalid input: magic number mismatch"},
		{"a.txt.gz", "plain text", "gzip: invalid header"},
		{"bomb.jsonl.zst", string(zstded(t, bomb)), "expected at most 256 times as many"},
		{"bomb.txt.zst", string(zstded(t, long)), "expected at most 256 times as many"},
	} {
		path := write(t, c.name, c.content)
		runtime.ReadMemStats(&before)
		err := readPieces(path, "text", mark{}, func(piece) error { return nil })
		runtime.GC()
		runtime.ReadMemStats(&after)
		assert.ErrorContains(t, err, c.want, c.name)
		assert.ErrorContains(t, err, c.name)
		assert.Less(t, after.HeapAlloc, before.HeapAlloc+64<<20, c.name)
	}
	for _, name := range []string{"a.jsonl.zst", "a.jsonl.gz"} {
		whole := gzipped(t, many)
		if name == "a.jsonl.zst" {
			whole = zstded(t, many)
		}
		for n := 1; n < len(whole); n += 101 {
			assert.Error(t, readPieces(write(t, name, string(whole[:n])), "text", mark{}, func(piece) error { return nil }))
		}
	}
}

// FuzzStreams checks that no compressed file makes the readers panic, and that what they read is what was compressed.
func FuzzStreams(f *testing.F) {
	lines := []byte("{\"text\": \"one\"}\n{\"text\": \"two\"}\n")
	for _, content := range [][]byte{lines, []byte("plain text"), bytes.Repeat([]byte("again "), 500), nil} {
		f.Add(gzipped(f, content), true)
		f.Add(zstded(f, content), false)
	}
	f.Add(append(gzipped(f, lines), gzipped(f, lines)...), true)
	f.Add(append(zstded(f, lines), zstded(f, lines)...), false)
	f.Fuzz(func(t *testing.T, raw []byte, isGzip bool) {
		ext := ".zst"
		if isGzip {
			ext = ".gz"
		}
		path := filepath.Join(t.TempDir(), "a.txt"+ext)
		require.NoError(t, os.WriteFile(path, raw, 0o644))
		var text []byte
		failed := readPieces(path, "text", mark{}, func(p piece) error {
			text = append(text, p.text...)
			return nil
		})
		if failed == nil {
			s, err := openStream(path, compressions[ext])
			require.NoError(t, err)
			want, err := io.ReadAll(s)
			require.NoError(t, errors.Join(err, s.Close()))
			require.Equal(t, string(want), string(text))
		}
		jsonl := filepath.Join(t.TempDir(), "a.jsonl"+ext)
		require.NoError(t, os.WriteFile(jsonl, raw, 0o644))
		_ = readPieces(jsonl, "text", mark{}, func(piece) error { return nil })
	})
}
