package arrow

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/columntest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func fixture(t testing.TB, name string) []byte {
	b, err := os.ReadFile(filepath.Join("testdata", name+".arrow"))
	require.NoError(t, err)
	return b
}

// read returns a column; nil stands for null.
func read(b []byte, column string) (texts []*string, err error) {
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	return columntest.Read(f, err, column)
}

func wanted(t *testing.T) (want map[string][]*string) {
	raw, err := os.ReadFile("testdata/texts.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &want))
	return want
}

func TestFilesOfPyArrow(t *testing.T) {
	want := wanted(t)
	for _, name := range []string{"plain", "stream", "large", "file", "zstd", "lz4"} {
		key := "nulls"
		if name == "plain" {
			key = "texts"
		}
		got, err := read(fixture(t, name), "text")
		require.NoError(t, err, name)
		assert.Equal(t, want[key], got, name)
		nested, err := read(fixture(t, name), "meta.source")
		require.NoError(t, err, name)
		require.Len(t, nested, len(got))
		for i, s := range got {
			if i%9 == 4 {
				s = nil
			}
			assert.Equal(t, s, nested[i], name)
		}
	}
}

// Files of Polars, views, and dictionaries that stay, grow by deltas or are replaced.
func TestFilesOfTextsAlone(t *testing.T) {
	want := wanted(t)["nulls"]
	for _, name := range []string{"views", "dictionary", "polars", "polars_large", "polars_category", "delta_file", "delta_stream",
		"replaced"} {
		got, err := read(fixture(t, name), "text")
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
}

// Skipped batches leave their dictionaries.
func TestSkipBatchesOfDictionaries(t *testing.T) {
	want := wanted(t)["nulls"]
	for _, name := range []string{"dictionary", "delta_file", "delta_stream", "replaced"} {
		b := fixture(t, name)
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		require.NoError(t, err)
		c, err := f.Column("text")
		require.NoError(t, err)
		next, err := c.SkipBatches(35)
		require.NoError(t, err)
		require.Positive(t, next, name)
		for i := next; c.Next(); i++ {
			require.Equal(t, want[i] == nil, c.Null())
			if want[i] != nil {
				require.Equal(t, *want[i], string(c.Text()), name)
			}
		}
		require.NoError(t, c.Err())
		require.Equal(t, int64(len(want)-1), c.Row())
	}
}

func TestColumnOfTypeNull(t *testing.T) {
	for _, name := range []string{"stream", "file"} {
		got, err := read(fixture(t, name), "none")
		require.NoError(t, err, name)
		assert.Equal(t, make([]*string, 40), got, name)
	}
}

func TestColumnsThatCannotBeRead(t *testing.T) {
	for column, want := range map[string]string{
		"txt":       `no column "txt", found ["id (int)" "tags (list)" "view" "kind" "none" "text" "meta.n (int)" "meta.source"]`,
		"id":        `column "id" has type int, expected texts`,
		"tags":      `column "tags" has type list, expected texts`,
		"tags.item": `column "tags" has type list, expected a struct, in which "tags.item" is`,
		"text.x":    `column "text" has type string, expected a struct, in which "text.x" is`,
		"meta":      `column "meta" is a struct, expected texts: found ["id (int)"`,
	} {
		_, err := read(fixture(t, "stream"), column)
		assert.ErrorContains(t, err, want)
	}
}

func TestSkipBatches(t *testing.T) {
	b := fixture(t, "plain")
	all, err := read(b, "text")
	require.NoError(t, err)
	for row := range int64(len(all)) {
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		require.NoError(t, err)
		c, err := f.Column("text")
		require.NoError(t, err)
		next, err := c.SkipBatches(row)
		require.NoError(t, err)
		require.LessOrEqual(t, next, row)
		require.Less(t, row-next, int64(17))
		for i := next; c.Next(); i++ {
			require.Equal(t, i, c.Row())
			require.Equal(t, *all[i], string(c.Text()))
		}
		require.NoError(t, c.Err())
	}
}

// TestDamagedFiles cuts files at many lengths, and changes bytes: a file is read or gives an error.
func TestDamagedFiles(t *testing.T) {
	for _, name := range []string{"stream", "file"} {
		b := fixture(t, name)
		for n := 0; n < len(b)-4; n += 29 { // an end in the middle of the mark at the end is one, too
			_, err := read(b[:n], "text")
			require.Error(t, err, "%s, cut to %d bytes", name, n)
		}
	}
	for _, name := range []string{"stream", "zstd", "polars_large", "polars_category", "views", "delta_file", "replaced"} {
		b := fixture(t, name)
		for i := 0; i < len(b); i += 5 {
			for _, x := range []byte{0x80, 0xff} {
				b[i] ^= x
				_, _ = read(b, "text")
				b[i] ^= x
			}
		}
	}
}

// TestDeclaredSizes puts large numbers into every place of the metadata: no file takes more memory than its bytes
// allow.
func TestDeclaredSizes(t *testing.T) {
	var before, after runtime.MemStats
	for _, name := range []string{"plain", "zstd", "polars_category", "views", "delta_stream"} {
		b := fixture(t, name)
		for at := 8; at+8 <= len(b); at += 8 {
			if name == "plain" && at > 4<<10 {
				break // values follow
			}
			for _, x := range []uint64{1 << 31, 1<<63 - 1} {
				changed := bytes.Clone(b)
				binary.LittleEndian.PutUint64(changed[at:], x)
				runtime.ReadMemStats(&before)
				_, _ = read(changed, "text")
				runtime.ReadMemStats(&after)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(80<<20), "%s: %d at %d", name, x, at)
			}
		}
	}
	_, err := read([]byte("not an Arrow file at all"), "text")
	assert.ErrorContains(t, err, "not an Arrow file")
	_, err = read(nil, "text")
	assert.ErrorContains(t, err, "0 bytes, expected at least 8")
}

func FuzzArrow(f *testing.F) {
	for _, name := range []string{"stream", "large", "file", "zstd", "views", "dictionary", "polars", "polars_category", "delta_stream"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		columntest.ReadAll(f)
	})
}

func TestFeatherVersion1(t *testing.T) {
	_, err := Open(strings.NewReader("FEA1\x00\x00\x00\x00FEA1"), 12)
	assert.ErrorContains(t, err, "Feather version 1, expected version 2")
}
