package parquet

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/columntest"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func fixture(t testing.TB, name string) []byte {
	b, err := os.ReadFile(filepath.Join("testdata", name+".parquet"))
	require.NoError(t, err)
	return b
}

// read returns a column; nil stands for null.
func read(b []byte, column string) (texts []*string, err error) {
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	return columntest.Read(f, err, column)
}

func TestFilesOfPyArrow(t *testing.T) {
	var want map[string][]*string
	raw, err := os.ReadFile("testdata/texts.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &want))
	for _, name := range []string{"plain", "nulls", "snappy", "gzip", "zstd", "pages", "delta_length", "delta_bytes", "fallback", "brotli",
		"lz4_raw", "empty_groups", "lz4_fastparquet"} {
		key := "nulls"
		if name == "plain" || name == "brotli" {
			key = "texts"
		}
		got, err := read(fixture(t, name), "text")
		require.NoError(t, err, name)
		assert.Equal(t, want[key], got, name)
		if name == "empty_groups" || name == "lz4_fastparquet" {
			continue // they have no other column
		}
		nested, err := read(fixture(t, name), "meta.source")
		require.NoError(t, err, name)
		require.Len(t, nested, len(got))
		for i, s := range got {
			switch {
			case s == nil || len([]rune(*s))%2 == 1:
				assert.Equal(t, s, nested[i], name)
			default:
				assert.Equal(t, "s"+*s, *nested[i], name)
			}
		}
	}
}

// Data pages of version 2 whose values are all null may have no bytes of values, whatever the codec.
func TestPagesOfNulls(t *testing.T) {
	for _, name := range []string{"null_pages_snappy", "null_pages_gzip"} {
		got, err := read(fixture(t, name), "text")
		require.NoError(t, err, name)
		require.Len(t, got, 13, name)
		for i, text := range got {
			switch i {
			case 0:
				assert.Equal(t, "alpha", *text, name)
			case 12:
				assert.Equal(t, "beta", *text, name)
			default:
				assert.Nil(t, text, name)
			}
		}
	}
}

// pandas gives a column of nulls alone the type null.
func TestColumnOfTypeNull(t *testing.T) {
	b := fixture(t, "null_type")
	got, err := read(b, "text")
	require.NoError(t, err)
	assert.Equal(t, make([]*string, 40), got)
}

func TestColumnsThatCannotBeRead(t *testing.T) {
	for column, want := range map[string]string{
		"txt":               `no column "txt", found ["id (INT64)" "tags (list)" "text" "meta.source"]`,
		"text.x":            `column "text" has type text, expected a struct, in which "text.x" is`,
		"id":                `column "id" has type INT64, expected texts as BYTE_ARRAY`,
		"tags":              `column "tags" is a list, expected texts`,
		"tags.list.element": `column "tags" is a list, expected texts`,
		"meta":              `column "meta" is a struct, expected texts: found ["id (INT64)" "tags (list)" "text" "meta.source"]`,
	} {
		_, err := read(fixture(t, "zstd"), column)
		assert.ErrorContains(t, err, want)
	}
}

// A name may have a dot, also beside a column that is named as its beginning.
func TestDotsInNames(t *testing.T) {
	s := schema{fields: []schemaField{{path: "meta", kind: textKind}, {path: "meta.text", kind: textKind, leaf: 1},
		{path: "tags", kind: listKind, leaf: 2}}}
	e, err := s.find("meta.text")
	require.NoError(t, err)
	assert.Equal(t, 1, e.leaf)
	_, err = s.find("meta.other")
	assert.ErrorContains(t, err, `column "meta" has type text, expected a struct, in which "meta.other" is`)
	_, err = s.find("tags.element")
	assert.ErrorContains(t, err, `column "tags" is a list`)
}

func TestSkipGroups(t *testing.T) {
	b := fixture(t, "plain")
	all, err := read(b, "text")
	require.NoError(t, err)
	for row := range int64(len(all)) {
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		require.NoError(t, err)
		c, err := f.Column("text")
		require.NoError(t, err)
		next := c.SkipGroups(row)
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
	for _, name := range []string{"pages", "delta_length"} {
		b := fixture(t, name)
		for n := 0; n < len(b); n += 29 {
			_, err := read(b[:n], "text")
			require.Error(t, err, "%s, cut to %d bytes", name, n)
		}
	}
	for _, name := range []string{"pages", "snappy", "fallback", "brotli", "lz4_raw", "lz4_fastparquet"} {
		b := fixture(t, name)
		for i := 0; i < len(b); i += 11 {
			for _, x := range []byte{0x80, 0xff} {
				b[i] ^= x
				_, _ = read(b, "text")
				b[i] ^= x
			}
		}
	}
}

func TestChecksumOfPages(t *testing.T) {
	b := fixture(t, "zstd")
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	column, err := f.schema.find("text")
	require.NoError(t, err)
	chunks, err := f.chunks(column.leaf)
	require.NoError(t, err)
	b[chunks[0].end()-1] ^= 1
	_, err = read(b, "text")
	assert.ErrorContains(t, err, "its checksum is wrong: the file is damaged")
}

// encoder writes structs of Thrift's compact protocol.
type encoder struct{ bytes.Buffer }

func (e *encoder) field(delta, kind int) *encoder { e.WriteByte(byte(delta<<4 | kind)); return e }
func (e *encoder) number(x int64) *encoder {
	e.Write(binary.AppendVarint(nil, x))
	return e
}
func (e *encoder) int(delta int, x int64) *encoder { return e.field(delta, thriftI64).number(x) }
func (e *encoder) text(delta int, s string) *encoder {
	e.field(delta, thriftBinary).Write(binary.AppendUvarint(nil, uint64(len(s))))
	e.WriteString(s)
	return e
}
func (e *encoder) list(delta, kind, n int) *encoder {
	e.field(delta, thriftList).WriteByte(byte(15<<4 | kind))
	e.Write(binary.AppendUvarint(nil, uint64(n)))
	return e
}
func (e *encoder) end() *encoder { e.WriteByte(0); return e }

// hostile is a file of one column of one page, with what it declares of itself.
type hostile struct {
	rows, values, pageValues, size, compressed, codec, encoding, listSize int64
	content                                                               []byte
}

func (h hostile) bytes() []byte {
	var page encoder
	page.int(1, dataPage).int(1, h.size).int(1, h.compressed).field(2, thriftStruct)
	page.int(1, h.pageValues).int(1, h.encoding).int(1, rleEncoding).int(1, rleEncoding).end().end()
	page.Write(h.content)
	var f encoder
	f.int(1, 1).list(1, thriftStruct, 2)
	f.text(4, "schema").int(1, 1).end()
	f.int(1, byteArray).int(2, 1).text(1, "text").end()
	f.int(1, h.rows).list(1, thriftStruct, int(h.listSize)).list(1, thriftStruct, 1)
	f.int(2, 4).field(1, thriftStruct).int(1, byteArray).int(3, h.codec).int(1, h.values).int(2, int64(page.Len())).int(2, 4).end().end()
	f.int(2, h.rows).end().end()
	return binary.LittleEndian.AppendUint32(append(append([]byte(magic), page.Bytes()...), f.Bytes()...), uint32(f.Len()))
}

func TestHostileFiles(t *testing.T) {
	z, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	bomb := z.EncodeAll(make([]byte, 40<<20), nil)
	defer z.Close()
	text := append([]byte{2, 0, 0, 0, 2, 1, 3, 0, 0, 0}, "abc"...) // a level of 1, and a text
	good := hostile{1, 1, 1, int64(len(text)), int64(len(text)), uncompressed, plainEncoding, 1, text}
	const many = 1 << 31
	var before, after runtime.MemStats
	for name, c := range map[string]struct {
		change func(*hostile)
		want   string
	}{
		"rows":            {func(h *hostile) { h.rows = many }, "2147483648 rows, but the column has 1 values"},
		"rows and values": {func(h *hostile) { h.rows, h.values = many, many }, "fewer than it declares"},
		"rows of a page":  {func(h *hostile) { h.rows, h.values, h.pageValues = many, many, many }, "fewer values than it declares"},
		"negative rows":   {func(h *hostile) { h.rows = -1 }, "-1 rows"},
		"row groups":      {func(h *hostile) { h.listSize = many }, "ends within a value"},
		"bomb": {func(h *hostile) { h.content, h.codec, h.compressed, h.size = bomb, zstandard, int64(len(bomb)), 40<<20 },
			"expected at most 256 times as many"},
		"hidden bomb": {func(h *hostile) { h.content, h.codec, h.compressed, h.size = bomb, zstandard, int64(len(bomb)), 99 }, "ZSTD"},
		"page size":   {func(h *hostile) { h.size = math.MaxInt32 }, "expected at most 536870912"},
		"page":        {func(h *hostile) { h.compressed = 1 << 40 }, "a page of 1099511627776 bytes"},
		"negative":    {func(h *hostile) { h.compressed = -1 }, "a page of -1 bytes"},
		"lengths":     {func(h *hostile) { h.content[6], h.content[9] = 0xff, 0x7f }, "a text of"},
		"levels":      {func(h *hostile) { h.content[3] = 0xff }, "levels of"},
		"dictionary":  {func(h *hostile) { h.encoding = dictionaryEncoding }, "its dictionary is missing"},
		"encoding":    {func(h *hostile) { h.encoding = 77 }, "encoding 77 is not one"},
		"codec":       {func(h *hostile) { h.codec = 99 }, "compressed by number 99"},
		"snappy":      {func(h *hostile) { h.codec = snappy }, "SNAPPY"},
		"gzip":        {func(h *hostile) { h.codec = gzipped }, "GZIP"},
		"brotli":      {func(h *hostile) { h.codec = brotlied }, "BROTLI"},
		"lz4":         {func(h *hostile) { h.codec = lz4Framed }, "LZ4"},
		"lz4_raw":     {func(h *hostile) { h.codec = lz4Raw }, "LZ4_RAW"},
		"lzo":         {func(h *hostile) { h.codec = 3 }, "compressed by LZO, expected SNAPPY"},
		"delta lengths": {func(h *hostile) {
			h.content = binary.AppendUvarint([]byte{2, 0, 0, 0, 2, 1, 128, 1, 4}, many)
			h.content = append(h.content, 0)
			h.rows, h.values, h.pageValues, h.encoding = many, many, many, deltaLengthEncoding
			h.compressed = int64(len(h.content))
			h.size = h.compressed
		}, "lengths: 2147483648, expected at most"},
	} {
		h := good
		h.content = bytes.Clone(h.content)
		c.change(&h)
		b := append(h.bytes(), magic...)
		runtime.ReadMemStats(&before)
		_, err := read(b, "text")
		runtime.ReadMemStats(&after)
		assert.ErrorContains(t, err, c.want, name)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(b)+80<<20), name)
	}
	got, err := read(append(good.bytes(), magic...), "text")
	require.NoError(t, err)
	require.Len(t, got, 1)
	assert.Equal(t, "abc", *got[0])
}

func TestNamesAreBounded(t *testing.T) {
	var f encoder
	name := strings.Repeat("x", maxPaths/maxDepth/2)
	f.int(1, 1).list(1, thriftStruct, 100)
	f.text(4, "schema").int(1, 99).end()
	for range 99 {
		f.int(1, byteArray).text(3, name).end()
	}
	f.int(1, 0).end()
	b := append(binary.LittleEndian.AppendUint32(append([]byte(magic), f.Bytes()...), uint32(f.Len())), magic...)
	_, err := read(b, "text")
	assert.ErrorContains(t, err, "the names of columns have more than")
}

func FuzzParquet(f *testing.F) {
	for _, name := range []string{"snappy", "gzip", "zstd", "pages", "delta_length", "delta_bytes", "fallback", "brotli", "lz4_raw",
		"lz4_fastparquet", "null_type", "null_pages_gzip"} {
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
