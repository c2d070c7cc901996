package data

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// findings loads files with a tokenizer of bytes.
func findings(t *testing.T, files ...string) (string, Findings) {
	c, _, err := load(t, Options{Train: files, Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	return text(t, c), c.Findings()
}

func TestWhatIsNoDocumentIsCounted(t *testing.T) {
	few := write(t, "a.jsonl", "{\"text\":null}\n{\"text\":\"a\"}\n{\"text\":\"\"}\n\n{\"text\":null}\n{\"text\":\"b\"}\n{\"text\":\"\"}\n")
	got, found := findings(t, few)
	assert.Equal(t, "ab", got)
	assert.Equal(t, Tally{Nulls: 2, Empty: 2}, found.Tally)
	assert.Equal(t, []string{"documents without text are skipped: 2 null, 2 empty",
		"the tokenizer has no token that ends a document: 2 documents are joined without one"}, found.Notes())

	var texts map[string][]*string
	raw, err := os.ReadFile("parquet/testdata/texts.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &texts))
	var lines strings.Builder
	for _, s := range texts["nulls"] {
		line, err := json.Marshal(map[string]any{"text": s})
		require.NoError(t, err)
		lines.Write(append(line, '\n'))
	}
	var tokens []int32
	for _, file := range []string{write(t, "a.json", lines.String()), "parquet/testdata/nulls.parquet", "arrow/testdata/stream.arrow"} {
		c, _, err := load(t, Options{Train: []string{file}, Tokenizer: byteTok{}, Vocab: 256})
		require.NoError(t, err)
		assert.Equal(t, Tally{Nulls: 7, Empty: 1}, c.Findings().Tally, file)
		if tokens == nil {
			tokens = tokensOf(t, c)
		}
		assert.Equal(t, tokens, tokensOf(t, c), file)
	}
}

// TestAbsentFields checks that an object without the field counts as null, as it does in the Parquet file that pandas
// or datasets make of the same lines, and that a file in which no object has it is refused.
func TestAbsentFields(t *testing.T) {
	for _, content := range []string{"{\"n\":1}\n{\"text\":\"a\"}\n{}\n{\"text\":null}\n",
		"[{},{\"text\":\"a\"},{\"n\":{}},{\"text\":null}]"} {
		got, found := findings(t, write(t, "a.json", content))
		assert.Equal(t, "a", got)
		assert.Equal(t, Tally{Nulls: 3}, found.Tally)
	}
	_, _, err := load(t, Options{Train: []string{write(t, "a.jsonl", "{\"n\":1}\n{\"m\":2}\n")}, Tokenizer: byteTok{}, Vocab: 256})
	assert.ErrorContains(t, err, `a.jsonl: line 1: no field "text", found ["n"]`)
}

func TestJSONInTextFilesIsReported(t *testing.T) {
	for content, want := range map[string]bool{
		"{\"text\":\"a\"}\n{\"text\":\"b\"}\n": true, "{\"a\":1}": true, "{\n \"a\": [NaN]\n}\n": true, "[{\"a\":1}, {\"a\":2}]": true,
		"[a]": false, "[1]": false, "{": false, "{}{": false, "{not JSON}": false, "text {\"a\":1}": false, "{\"a\":1} text": false,
	} {
		path := write(t, "a.log", content)
		got, found := findings(t, path)
		assert.Equal(t, content, got)
		assert.Equal(t, want, found.JSONText == path, content)
	}
}

func TestEmptyFilesAreSkipped(t *testing.T) {
	files := []string{write(t, "a.txt", "a"), write(t, "b.txt", ""), write(t, "c.txt", "\uFEFF"), write(t, "d.json", "[]"),
		write(t, "e.jsonl", "\n\n"),
		write(t, "f.jsonl", "{\"text\":null}"), write(t, "g.txt.gz", string(gzipped(t, nil))), write(t, "h.jl.zst", ""),
		write(t, "i.txt", "i")}
	got, found := findings(t, files...)
	assert.Equal(t, "ai", got)
	assert.Equal(t, int64(7), found.EmptyFiles)
	assert.Equal(t, files[1:6], found.SomeOfThem)
	assert.Contains(t, found.Notes()[1], "files without a document are skipped: "+files[1])
	assert.Contains(t, found.Notes()[1], " and 2 more")
	_, _, err := load(t, Options{Train: files[1:3], Tokenizer: byteTok{}, Vocab: 256})
	assert.EqualError(t, err, files[1]+", "+files[2]+": no document")
}

// TestPreparedFindings checks that shards count the same after a stop at each of them.
func TestPreparedFindings(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "{\"text\":null}\n{\"text\":\"document %d \xff\"}\n{\"text\":\"\"}\n", i)
	}
	b.WriteString("{\"text\":\"" + strings.Repeat("long ", 1000) + "\"}")
	files := []string{write(t, "a.jsonl", b.String()), write(t, "b.txt", ""), write(t, "c.json", "[{\"text\":\"end\"},{\"text\":null}]")}
	want := Tally{Nulls: 41, Empty: 40, NotUTF8: 40}
	dir := t.TempDir()
	o := PrepareOptions{Inputs: files, OutDir: dir, Tokenizer: byteTok{}, ShardTokens: 900}
	m := prepare(t, o)
	assert.Equal(t, want, m.Statistics.Tally)
	found := m.Findings(true)
	assert.Equal(t, files[1:2], found.SomeOfThem)
	for n := range m.Shards {
		cut := *m
		cut.Shards, cut.Complete = m.Shards[:n], false
		require.NoError(t, cut.save(dir))
		again := prepare(t, o)
		assert.Equal(t, want, again.Statistics.Tally, n)
		assert.Equal(t, int64(1), again.Statistics.EmptyFiles, n)
	}
}

// TestInvalidUTF8 checks that 1 % of a text may be bytes that are not UTF-8, in every format alike.
func TestInvalidUTF8(t *testing.T) {
	good := strings.Repeat("a", 99)
	for _, c := range []struct {
		name, few, many string
	}{
		{"a.txt", good + "\xe9", good + "\xe9\xe9"},
		{"a.jsonl", "{\"text\":\"" + good + "\"}\n{\"text\":\"\xe9\"}", "{\"text\":\"" + good + "\"}\n{\"text\":\"\xe9\xe9\"}"},
		{"b.jsonl", "{\"text\":\"" + good + good + "\\ud800\"}", "{\"text\":\"\\udc00\"}"},
	} {
		_, found := findings(t, write(t, c.name, c.few))
		assert.Equal(t, int64(1), found.NotUTF8, c.name)
		assert.Contains(t, found.Notes()[0], "1 bytes of text are not UTF-8")
		_, _, err := load(t, Options{Train: []string{write(t, c.name, c.many)}, Tokenizer: byteTok{}, Vocab: 256})
		assert.ErrorContains(t, err, c.name+": ")
		assert.ErrorContains(t, err, "bytes are not UTF-8, the first, ")
	}
	_, _, err := load(t, Options{Train: []string{write(t, "sjis.jsonl", "{\"text\":\"\x93\xfa\x96\x7b\"}")}, Tokenizer: byteTok{},
		Vocab: 256})
	assert.ErrorContains(t, err, "sjis.jsonl: 3 of 4 bytes are not UTF-8, the first, 0x93, in the object at offset 0: expected UTF-8 text")
}

func TestByteOrderMarks(t *testing.T) {
	got, _ := findings(t, write(t, "a.txt", "\uFEFFa\uFEFF"), write(t, "b.jsonl", "\uFEFF{\"text\":\"\uFEFFb\"}"))
	assert.Equal(t, "a\uFEFF\uFEFFb", got)
	long := words(3 * pieceSize)
	got, _ = findings(t, write(t, "a.txt", "\uFEFF"+long))
	assert.Equal(t, long, got)
	units := func(order binary.AppendByteOrder, s string) (out []byte) {
		for _, u := range utf16.Encode([]rune(s)) {
			out = order.AppendUint16(out, u)
		}
		return out
	}
	for want, content := range map[string][]byte{
		"UTF-16LE: expected UTF-8; iconv -f UTF-16 ":   units(binary.LittleEndian, "\uFEFFhello"),
		"UTF-16BE: expected UTF-8; iconv -f UTF-16 ":   units(binary.BigEndian, "\uFEFFhello"),
		"UTF-16LE: expected UTF-8; iconv -f UTF-16LE ": units(binary.LittleEndian, "{\"text\":\"é\"}"),
		"UTF-16BE: expected UTF-8; iconv -f UTF-16BE ": units(binary.BigEndian, "{\"text\":\"é\"}"),
		"UTF-32LE: expected UTF-8; iconv -f UTF-32 ":   []byte("\xFF\xFE\x00\x00h\x00\x00\x00"),
		"UTF-32BE: expected UTF-8; iconv -f UTF-32BE ": []byte("\x00\x00\x00h\x00\x00\x00i"),
	} {
		for _, name := range []string{"a.txt", "a.jsonl"} {
			_, err := Expand([]string{write(t, "good.txt", "good"), write(t, name, string(content))})
			assert.ErrorContains(t, err, name+": the text is "+want)
		}
	}
}

// TestOtherFilesAreRefused checks that files without documents are refused with advice before any is read.
func TestOtherFilesAreRefused(t *testing.T) {
	zip := func(first string) string { return "PK\x03\x04" + strings.Repeat("\x00", 26) + first }
	for name, want := range map[string]string{
		"a.csv": `pandas.read_csv("`, "a.TSV.gz": `sep="\t"`, "a.xlsx": "a spreadsheet", "a.docx": "a Word document",
		"a.pdf": "a PDF document", "a.png": "an image",
		"a.zip": "a ZIP archive: expected the files in it", "a.tar.zst": "a tar archive", "a.pkl": "a pickle",
		"a.npy":         "an array of numbers",
		"a.safetensors": "a model", "a.jsonl.bz2": "compressed in another way", "a.avro": "a file of records: expected .jsonl or .parquet",
	} {
		_, err := Expand([]string{write(t, name, "text")})
		assert.ErrorContains(t, err, " files are not read, found ", name)
		assert.ErrorContains(t, err, want, name)
	}
	for content, want := range map[string]string{
		"PK\x03\x04\x00": "begins as a ZIP archive", zip("[Content_Types].xml"): "begins as an office document (.docx, .xlsx or .pptx)",
		zip("mimetypeapplication/epub+zip"): "begins as an electronic book", zip("a.txt"): "begins as a ZIP archive",
		"{\\rtf1\\ansi": "begins as an RTF document",
		"FEA1\x00\x00":  "begins as Feather version 1", "\xD0\xCF\x11\xE0\xA1": "begins as an office document of before 2007",
		"\x89PNG\r\n\x1a\n\x00": "begins as a PNG image", "\x93NUMPY\x01\x00": "begins as a NumPy array",
		"\x80\x04\x95\x10\x00": "begins as a pickle", "%PDF-1.7\n": "begins as a PDF document",
		"\x1f\x8b\x08\x00": "expected a name that ends in .gz",
		"PAR1\x15\x00":     "expected a name that ends in .parquet", "a" + strings.Repeat("b", 200) + "\x00": "a NUL byte at offset 201",
	} {
		for _, name := range []string{"a", "a.txt", "a.jsonl", "a.md"} {
			_, err := Expand([]string{write(t, name, content)})
			assert.ErrorContains(t, err, want)
		}
		_, err := Expand([]string{write(t, "a.txt.zst", string(zstded(t, []byte(content))))})
		assert.ErrorContains(t, err, want)
	}
	for _, name := range []string{"a", "a.jsonl", "a.parquet", "a.bin", "a.txt.gz", "a.jsonl.zst"} {
		_, err := Expand([]string{write(t, name, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")})
		assert.ErrorContains(t, err, name+": found a Git LFS pointer of 56 bytes")
	}
	for _, s := range []string{"/a/path", "<html>", "PAR1 is a word", "RIFF", "GIF8 and more", "naïve", strings.Repeat("x", headSize-1) +
		"é"} {
		_, err := Expand([]string{write(t, "a.txt", s)})
		assert.NoError(t, err, s)
	}
}

func TestGlobsOfAnyDepth(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"a.txt", "s/b.txt", "s/t/c.txt", "s/t/u/d.txt", "s/t/e.md", ".git/f.txt", "s/.g.txt", "[x]/h.txt"} {
		path := filepath.Join(dir, filepath.FromSlash(n))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(n), 0o644))
	}
	require.NoError(t, os.Symlink(filepath.Join(dir, "s"), filepath.Join(dir, "s", "loop")))
	t.Chdir(dir)
	t.Setenv("SUB", "s")
	for pattern, want := range map[string]string{
		"**/*.txt": "[x]/h.txt a.txt s/b.txt s/t/c.txt s/t/u/d.txt", "s/**/*.txt": "s/b.txt s/t/c.txt s/t/u/d.txt",
		"s/**/u/*": "s/t/u/d.txt",
		"**/t/**":  "s/t/c.txt s/t/e.md s/t/u/d.txt", "s/**/**/c.txt": "s/t/c.txt", "?/**/*.md": "s/t/e.md",
		"$SUB/**/[cd].txt": "s/t/c.txt s/t/u/d.txt", "**/.g.txt": "s/.g.txt", `\[x]/*.txt`: "[x]/h.txt",
	} {
		files, err := Expand([]string{pattern})
		require.NoError(t, err, pattern)
		var slashed []string
		for _, f := range files {
			slashed = append(slashed, filepath.ToSlash(f))
		}
		assert.Equal(t, want, strings.Join(slashed, " "), pattern)
	}
	for pattern, want := range map[string]string{
		"**/none": "no file matches", "none/**": "no file matches", "**/[": "syntax error in pattern",
		"$NONE/**":       "variable NONE is not set",
		"~someone/*.txt": "home folder of another user", "[x]/*.txt": `no file matches: the folder [x] is written \[x] in a glob`,
		"[x]/*/*.txt": `written \[x] in a glob`, "[x]": `a glob such as \[x]/*.txt`, "[y]/*.txt": "[y]/*.txt: no file matches",
		"o/d":   "o/d: no such file. If it is a data set of the Hugging Face Hub, write hf:datasets/o/d, which is downloaded",
		"o/d:x": "o/d:x: no such file. If it is a data set of the Hugging Face Hub, write hf:datasets/o/d:x, which", "s/none": "s/none: no such file$",
		"o/d/*":        "o/d/*: no file matches. If it is a data set of the Hugging Face Hub, write hf:datasets/o/d/*, which is downloaded",
		"datasets/o/d": "write hf:datasets/o/d, which", "o/a:b.jsonl.gz": "o/a:b.jsonl.gz: no such file$", "at@x": "at@x: no such file$",
		"[s]": "[s]: matches the folder s: expected files, or a glob such as s", "[as]*": "[as]*: matches the folder s",
	} {
		_, err := Expand([]string{pattern})
		if all, ok := strings.CutSuffix(want, "$"); ok {
			assert.EqualError(t, err, all)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}

// A path into a folder that is here names no data set of the Hub, whatever the folder is called.
func TestPathsIntoAFolderOfDataSets(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("datasets/wiki/en", 0o755))
	require.NoError(t, os.WriteFile("datasets/wiki/en/shard-0", []byte("a text"), 0o644))
	files, err := Expand([]string{"datasets/wiki/en/*"})
	assert.NoError(t, err)
	assert.Equal(t, []string{filepath.FromSlash("datasets/wiki/en/shard-0")}, files)
	for pattern, want := range map[string]string{"datasets/wiki/de": "no such file", "datasets/wiki/de/*": "no file matches"} {
		_, err := Expand([]string{pattern})
		assert.EqualError(t, err, pattern+": "+want)
	}
}
