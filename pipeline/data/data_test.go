package data

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTextIsItsBytes(t *testing.T) {
	a, b := write(t, "a.txt", "hello\n"), write(t, "b.txt", "wörld")
	var done, total int64
	train, val, err := load(t, Options{Train: []string{a, b}, Tokenizer: byteTok{}, Vocab: 256,
		Progress: func(d, n int64) { done, total = d, n }})
	require.NoError(t, err)
	assert.Nil(t, val)
	want := []int32{}
	for _, x := range []byte("hello\nwörld") {
		want = append(want, int32(x))
	}
	assert.Equal(t, want, tokensOf(t, train))
	assert.Equal(t, Stats{Files: 2, Documents: 2, Bytes: 12, Tokens: 12}, train.Stats())
	assert.Equal(t, []int64{12, 12}, []int64{done, total})
}

func TestDocumentsEndWithEOS(t *testing.T) {
	tok := wordTok{vocab: 1000}
	text := write(t, "a.txt", "one two")
	lines := write(t, "b.jsonl", "{\"text\":\"one two\"}\n\n  \n{\"text\":\"\"}\n{\"id\":3,\"text\":\"three\\nfour\"}")
	train, _, err := load(t, Options{Train: []string{text, lines}, Tokenizer: tok, Vocab: 1000})
	require.NoError(t, err)
	doc := func(s string) []int32 {
		ids, err := tok.EncodePart([]byte(s), true)
		require.NoError(t, err)
		out := []int32{}
		for _, id := range append(ids, 0) {
			out = append(out, int32(id))
		}
		return out
	}
	want := append(append(doc("one two"), doc("one two")...), doc("three four")...)
	assert.Equal(t, want, tokensOf(t, train))
	assert.Equal(t, int64(3), train.Stats().Documents)
}

func TestFieldOfJSONL(t *testing.T) {
	path := write(t, "a.jsonl", `{"content":"ab","text":7}`)
	train, _, err := load(t, Options{Train: []string{path}, Field: "content", Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	assert.Equal(t, []int32{'a', 'b'}, tokensOf(t, train))
}

// A long document is encoded in pieces, to the tokens of the whole.
func TestLongDocuments(t *testing.T) {
	long := words(2*pieceSize + 12345)
	blob := strings.Repeat("x", 2*pieceSize+7) // nowhere to cut
	text, lines := write(t, "a.txt", long), filepath.Join(t.TempDir(), "b.jsonl")
	var b strings.Builder
	for _, s := range []string{long, "short", blob} {
		line, err := json.Marshal(map[string]string{"text": s})
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	require.NoError(t, os.WriteFile(lines, []byte(b.String()), 0o644))

	tok := wordTok{vocab: 60_000}
	want, err := tok.EncodePart([]byte(long), true)
	require.NoError(t, err)
	want = append(want, 0)
	c, _, err := load(t, Options{Train: []string{text}, Tokenizer: tok, Vocab: 60_000})
	require.NoError(t, err)
	assert.Equal(t, fromInts(t, want, 60_000).Hash(), c.Hash())
	assert.Equal(t, int64(1), c.Stats().Documents)

	c, _, err = load(t, Options{Train: []string{lines}, Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	ids, err := byteTok{}.EncodePart([]byte(long+"short"+blob), true)
	require.NoError(t, err)
	assert.Equal(t, fromInts(t, ids, 256).Hash(), c.Hash())
	assert.Equal(t, int64(3), c.Stats().Documents)
}

func TestGlobs(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"2.txt", "1.txt", "10.txt", "[x].txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte(n[:1]), 0o644))
	}
	files, err := Expand([]string{filepath.Join(dir, "2.txt"), filepath.Join(dir, "1*.txt"), filepath.Join(dir, "[x].txt")})
	require.NoError(t, err)
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	assert.Equal(t, []string{"2.txt", "1.txt", "10.txt", "[x].txt"}, files)
	_, err = Expand([]string{filepath.Join(dir, "2.txt"), filepath.Join(dir, "?.txt")})
	assert.ErrorContains(t, err, "2.txt: listed twice")
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	good := write(t, "good.txt", "some text")
	shard := func(ids []uint32, vocab int, change func([]byte) []byte) string {
		path := filepath.Join(t.TempDir(), "s.bin")
		require.NoError(t, writeBin(path, ids, vocab))
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, change(b), 0o644))
		return path
	}
	same := func(b []byte) []byte { return b }
	for _, c := range []struct{ path, want string }{
		{"", "train: an empty file name"},
		{filepath.Join(dir, "none.txt"), "none.txt: no such file"},
		{filepath.Join(dir, "*.txt"), "no file matches"},
		{filepath.Join(dir, "[.txt"), "syntax error in pattern"},
		{dir, "a folder: expected files"},
		{write(t, "empty.parquet", ""), "empty.parquet: the file is empty"},
		{write(t, "x.parquet", "PAR1"), "x.parquet: 4 bytes, expected at least 12 of a Parquet file"},
		{write(t, "x.arrow", "ARROW1xxxxxxxxx"), "x.arrow: footer: a file of 15 bytes: truncated"},
		{write(t, "x.xz", "xz"), "x.xz: .xz files are not read, found a file compressed in another way: expected text or .jsonl"},
		{write(t, "x.tar.gz", "tar"), ".tar files are not read, found a tar archive: expected the files in it"},
		{write(t, "x.parquet.zst", "PAR1"), "a compressed .parquet file: expected it without .zst"},
		{write(t, "zero.txt", "text\x00more"), "zero.txt: a NUL byte at offset 4: a binary file"},
		{write(t, "latin.txt", strings.Repeat("caf\xe9 ", 9)), "9 of 45 bytes are not UTF-8, the first, 0xE9, at offset 3"},
		{write(t, "a.jsonl", "{\"text\":\"a\"}\nnope\n"), "a.jsonl: line 2: not a JSON object"},
		{write(t, "a.jsonl", "{\"txt\":\"a\"}\n"), `line 1: no field "text", found ["txt"]`},
		{write(t, "a.jsonl", "{\"text\":7}\n"), `line 1: field "text" is 7: expected a string`},
		{shard(iota32(10), 300, func(b []byte) []byte { return b[:len(b)-3] }),
			"truncated: 1041 bytes found, 1044 expected for the 10 tokens"},
		{shard(iota32(10), 300, func(b []byte) []byte { return append(b, 0) }), "too long: 1045 bytes found, 1044 expected"},
		{shard(iota32(10), 300, func(b []byte) []byte { return b[:7] }), "7 bytes: expected a header of 1024"},
		{shard(iota32(10), 300, func(b []byte) []byte { b[0]++; return b }), "magic 20240521, version 1: expected"},
		{shard(iota32(10), 300, func(b []byte) []byte { b[4] = 7; return b }), "magic 20240520, version 7: expected"},
		{shard(iota32(10), 300, func(b []byte) []byte { b[11] = 0xff; return b }), "the header says -16777206 tokens"},
		{shard([]uint32{1, 2, 299}, 300, same), "s.bin: token 299 at position 2 is outside the vocabulary of 256"},
		{shard([]uint32{1, math.MaxUint32}, math.MaxInt, same), "token 4294967295 at position 1 is outside"},
	} {
		_, _, err := load(t, Options{Train: []string{good, c.path}, Tokenizer: byteTok{}, Vocab: 256})
		assert.ErrorContains(t, err, c.want)
		_, _, err = load(t, Options{Train: []string{good}, Val: []string{c.path}, Tokenizer: byteTok{}, Vocab: 256})
		assert.Error(t, err, c.want)
	}
	_, _, err := load(t, Options{Train: []string{good}, Tokenizer: byteTok{}, Vocab: 100})
	assert.ErrorContains(t, err, "good.txt: token 115 at position 0 is outside the vocabulary of 100")
	_, _, err = load(t, Options{Train: []string{good}, Vocab: 100})
	assert.ErrorContains(t, err, "no tokenizer given")
	_, _, err = load(t, Options{Train: []string{good}, Tokenizer: wordTok{vocab: 99, fail: func() bool { return true }}, Vocab: 100})
	assert.ErrorIs(t, err, errInjected)
}

func TestBadOptions(t *testing.T) {
	ok := Options{Train: []string{"a"}, Vocab: 1, SeqLen: 1}
	for want, change := range map[string]func(*Options){
		"train: found [], expected at least one file":                  func(o *Options) { o.Train = nil },
		"vocab: found 0, expected 1 to":                                func(o *Options) { o.Vocab = 0 },
		"val_fraction: found 1, expected":                              func(o *Options) { o.ValFraction = 1 },
		"val_fraction: found NaN":                                      func(o *Options) { o.ValFraction = math.NaN() },
		"val_fraction: found 1e-05, expected 0, since val names files": func(o *Options) { o.ValFraction, o.Val = 1e-5, []string{"b"} },
		"seq_len: found 0":                                             func(o *Options) { o.ValFraction, o.SeqLen = 0.1, 0 },
		"train: a: no such file":                                       func(*Options) {},
	} {
		o := ok
		change(&o)
		_, _, err := Load(context.Background(), o)
		assert.ErrorContains(t, err, want)
	}
}

func TestBinRoundTrip(t *testing.T) {
	for _, vocab := range []int{256, 50257, 65536, 65537, 128256} {
		ids := []uint32{0, 1, uint32(vocab - 1), 7, uint32(vocab / 2)}
		path := filepath.Join(t.TempDir(), "s.bin")
		require.NoError(t, writeBin(path, ids, vocab))
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		width := 2
		if vocab > 65536 {
			width = 4
		}
		require.Len(t, raw, 1024+len(ids)*width)
		c, _, err := load(t, Options{Train: []string{path}, Vocab: vocab})
		require.NoError(t, err)
		memory := fromInts(t, ids, vocab)
		assert.Equal(t, tokensOf(t, memory), tokensOf(t, c))
		assert.Equal(t, memory.Hash(), c.Hash(), "a hash is of the tokens, not of their form")
	}
	assert.ErrorContains(t, writeBin(filepath.Join(t.TempDir(), "x.bin"), []uint32{5}, 5),
		"token 5 at position 0 is outside the vocabulary of 5")
	assert.ErrorContains(t, writeBin("x.bin", nil, 5), "0 tokens")
}

// The header of llm.c's dev/data/data_common.py, byte for byte.
func TestBinHeaderIsLLMC(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.bin")
	require.NoError(t, writeBin(path, []uint32{50256, 1}, 50257))
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	want := make([]byte, 1024)
	copy(want, []byte{0x88, 0xD8, 0x34, 0x01, 1, 0, 0, 0, 2, 0, 0, 0})
	assert.Equal(t, append(want, 0x50, 0xC4, 1, 0), raw)
}

func TestReadAcrossFiles(t *testing.T) {
	var files []string
	for i := range 5 {
		files = append(files, write(t, fmt.Sprintf("%d.txt", i), strings.Repeat(string(rune('a'+i)), i+1)))
	}
	c, _, err := load(t, Options{Train: files, Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	all := "abbcccddddeeeee"
	for from := range all {
		for to := from; to <= len(all); to++ {
			got := make([]int32, to-from)
			require.NoError(t, c.Read(got, int64(from)))
			for i := range got {
				require.Equal(t, int32(all[from+i]), got[i])
			}
		}
	}
	assert.Panics(t, func() { _ = c.Read(make([]int32, 2), 14) })
}

func TestSplitHoldsOutTheTail(t *testing.T) {
	c := fromInts(t, iota32(104), 200) // 10 windows of 10, and 4 tokens
	train, val, err := c.Split(0.25, 10)
	require.NoError(t, err)
	assert.Equal(t, int64(81), train.Len())
	assert.Equal(t, int64(24), val.Len())
	assert.Equal(t, int32(80), tokensOf(t, val)[0], "the last target of training")
	assert.Equal(t, int32(103), tokensOf(t, val)[23])
	for want, held := range map[float64]int64{0.0001: 1, 0.1: 1, 0.5: 5, 0.999: 9} {
		train, val, err := c.Split(want, 10)
		require.NoError(t, err)
		assert.Equal(t, 10-held, (train.Len()-1)/10)
		assert.Equal(t, held, (val.Len()-1)/10)
	}
	hashes := map[string]bool{c.Hash(): true, train.Hash(): true, val.Hash(): true}
	assert.Len(t, hashes, 3)
	_, _, err = c.Split(0.5, 60)
	assert.ErrorContains(t, err, "seq_len: found 60, but 104 tokens are 1 windows of it")

	path := write(t, "a.txt", words(5000))
	a, b, err := load(t, Options{Train: []string{path}, ValFraction: 0.1, SeqLen: 16, Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	assert.Equal(t, a.Stats().Tokens, a.Len()+b.Len()-1)
	_, b, err = load(t, Options{Train: []string{path}, Val: []string{path}, Tokenizer: byteTok{}, Vocab: 256})
	require.NoError(t, err)
	assert.Equal(t, b.Stats().Tokens, b.Len())
}

func TestUnigramEntropy(t *testing.T) {
	for _, c := range []struct {
		ids  []uint32
		want float64
	}{
		{[]uint32{3, 3, 3}, 0},
		{iota32(64), math.Log(64)},
		{[]uint32{0, 0, 0, 1}, -(0.75*math.Log(0.75) + 0.25*math.Log(0.25))},
	} {
		got, err := fromInts(t, c.ids, 64).UnigramEntropy()
		require.NoError(t, err)
		assert.InDelta(t, c.want, got, 1e-12)
	}
}

func TestLoadStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	path := write(t, "a.txt", words(3*pieceSize))
	_, _, err := Load(ctx, Options{Train: []string{path}, Tokenizer: byteTok{}, Vocab: 256, Progress: func(int64, int64) { cancel() }})
	assert.ErrorIs(t, err, context.Canceled)
}

func TestShardThatShrinksLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.bin")
	require.NoError(t, writeBin(path, iota32(100), 200))
	c, _, err := load(t, Options{Train: []string{path}, Vocab: 200})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 1100))
	err = c.Read(make([]int32, 10), 80)
	assert.ErrorContains(t, err, "s.bin: tokens 80 to 90: unexpected EOF")
}

func FuzzBin(f *testing.F) {
	path := filepath.Join(f.TempDir(), "s.bin")
	for _, vocab := range []int{300, 70000} {
		require.NoError(f, writeBin(path, iota32(5), vocab))
		raw, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "s.bin")
		require.NoError(t, os.WriteFile(path, raw, 0o644))
		c, _, err := Load(context.Background(), Options{Train: []string{path}, Vocab: 1000})
		if err != nil {
			return
		}
		defer c.Close()
		for _, id := range tokensOf(t, c) {
			require.True(t, id >= 0 && id < 1000)
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("{\"text\":\"a\"}\n{\"text\":\"b\\u0000\"}"), true)
	f.Add([]byte("plain\n\ntext \xff"), false)
	f.Fuzz(func(t *testing.T, raw []byte, jsonl bool) {
		name := "a.txt"
		if jsonl {
			name = "a.jsonl"
		}
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, raw, 0o644))
		c, _, err := Load(context.Background(), Options{Train: []string{path}, Tokenizer: byteTok{}, Vocab: 256})
		if err == nil && !jsonl {
			require.Equal(t, int64(len(raw)), c.Len())
		}
	})
}
