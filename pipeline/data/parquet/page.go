package parquet

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/gpupipe/gpupipe/pipeline/data/column"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// MaxPage bounds the bytes of a page and of a dictionary.
const MaxPage = 512 << 20

const (
	// A page may take this many times its compressed size, or freePage bytes.
	maxExpansion = 256
	freePage     = 32 << 20
	maxHeader    = 32 << 20 // bytes of a page's header; statistics may have whole texts
)

// Codecs of pages.
const (
	uncompressed = 0
	snappy       = 1
	gzipped      = 2
	brotlied     = 4
	lz4Framed    = 5 // deprecated: Hadoop's blocks, a frame or a block
	zstandard    = 6
	lz4Raw       = 7
)

var codecs = []string{"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"}

func checkCodec(codec int64) error {
	switch codec {
	case uncompressed, snappy, gzipped, brotlied, lz4Framed, zstandard, lz4Raw:
		return nil
	}
	name := fmt.Sprint("number ", codec)
	if codec >= 0 && codec < int64(len(codecs)) {
		name = codecs[codec]
	}
	return fmt.Errorf("pages compressed by %s, expected SNAPPY, GZIP, BROTLI, ZSTD, LZ4_RAW, LZ4 or UNCOMPRESSED", name)
}

// Types of pages.
const (
	dataPage       = 0
	indexPage      = 1
	dictionaryPage = 2
	dataPageV2     = 3
)

// pageHeader is the header of a page; -1: not given.
type pageHeader struct {
	kind, size, compressed, crc        int64
	values, encoding, levelEncoding    int64
	definitionLength, repetitionLength int64
	valuesPlain                        bool // of version 2: not compressed
	headerBytes                        int64
}

// readHeader reads the header at an offset of a chunk that ends at to.
func readHeader(r io.ReaderAt, at, to int64) (h pageHeader, err error) {
	for size := min(int64(1)<<12, to-at); ; size = min(size*8, to-at, maxHeader) {
		buf := make([]byte, size)
		if err := column.ReadAt(r, buf, at); err != nil {
			return h, err
		}
		t := &thrift{b: buf}
		if h = parseHeader(t); t.err == nil {
			h.headerBytes = size - int64(len(t.b))
			return h, h.check(to - at - h.headerBytes)
		}
		if !errors.Is(t.err, errShort) || size == min(to-at, maxHeader) {
			return h, fmt.Errorf("header: %w", t.err)
		}
	}
}

func parseHeader(t *thrift) pageHeader {
	h := pageHeader{kind: -1, size: -1, compressed: -1, crc: -1, values: -1}
	t.structure(func(id int64, kind byte) {
		switch {
		case id == 1:
			t.intField(kind, &h.kind)
		case id == 2:
			t.intField(kind, &h.size)
		case id == 3:
			t.intField(kind, &h.compressed)
		case id == 4:
			t.intField(kind, &h.crc)
			h.crc = int64(uint32(h.crc))
		case id == 5 && kind == thriftStruct || id == 7 && kind == thriftStruct:
			parseContent(t, &h)
		case id == 8 && kind == thriftStruct:
			parseContentV2(t, &h)
		default:
			t.skip(kind)
		}
	})
	return h
}

// parseContent reads the header of a data page or of a dictionary.
func parseContent(t *thrift, h *pageHeader) {
	t.structure(func(id int64, kind byte) {
		switch {
		case id == 1:
			t.intField(kind, &h.values)
		case id == 2:
			t.intField(kind, &h.encoding)
		case id == 3 && kind != thriftTrue && kind != thriftFalse: // of a dictionary: whether it is sorted
			t.intField(kind, &h.levelEncoding)
		default:
			t.skip(kind)
		}
	})
}

func parseContentV2(t *thrift, h *pageHeader) {
	h.levelEncoding = rleEncoding
	t.structure(func(id int64, kind byte) {
		switch id {
		case 1:
			t.intField(kind, &h.values)
		case 4:
			t.intField(kind, &h.encoding)
		case 5:
			t.intField(kind, &h.definitionLength)
		case 6:
			t.intField(kind, &h.repetitionLength)
		case 7:
			h.valuesPlain = kind == thriftFalse
			t.skip(kind)
		default:
			t.skip(kind)
		}
	})
}

// check compares sizes with the bytes that are left of the chunk.
func (h *pageHeader) check(left int64) error {
	levels := h.definitionLength + h.repetitionLength
	switch {
	case h.compressed < 0 || h.compressed > min(left, MaxPage):
		return fmt.Errorf("a page of %d bytes, expected at most %d", h.compressed, min(left, MaxPage))
	case h.size < 0 || h.size > MaxPage:
		return fmt.Errorf("a page of %d bytes without compression, expected at most %d", h.size, MaxPage)
	case h.size > freePage && h.size > maxExpansion*h.compressed:
		return fmt.Errorf("a page that expands from %d to %d bytes, expected at most %d times as many", h.compressed, h.size, maxExpansion)
	case h.kind != indexPage && h.values < 0:
		return fmt.Errorf("a page of %d values", h.values)
	case h.definitionLength < 0 || h.repetitionLength < 0 || levels > min(h.size, h.compressed):
		return fmt.Errorf("levels of %d bytes in a page of %d", levels, h.compressed)
	}
	return nil
}

// decompressor decompresses pages. It keeps the state of zstd.
type decompressor struct{ zstd *zstd.Decoder }

// page reads the content of a page at an offset.
func (d *decompressor) page(r io.ReaderAt, at int64, h pageHeader, codec int64) ([]byte, error) {
	raw := make([]byte, h.compressed)
	if err := column.ReadAt(r, raw, at); err != nil {
		return nil, err
	}
	if h.crc >= 0 && crc32.ChecksumIEEE(raw) != uint32(h.crc) {
		return nil, errors.New("its checksum is wrong: the file is damaged")
	}
	levels := int64(0)
	if h.kind == dataPageV2 { // levels are never compressed there
		levels = h.definitionLength + h.repetitionLength
		if h.valuesPlain {
			codec = uncompressed
		}
	}
	content, err := d.decompress(raw[levels:], int(h.size-levels), codec)
	if err != nil || levels == 0 {
		return content, err
	}
	return append(raw[:levels:levels], content...), nil
}

// decompress returns exactly size bytes. Writers leave out compressed bytes of an empty page.
func (d *decompressor) decompress(raw []byte, size int, codec int64) (out []byte, err error) {
	switch {
	case len(raw) == 0 && size == 0:
		return nil, nil
	case codec == uncompressed:
		out = raw
	case codec == snappy:
		if n, err := s2.DecodedLen(raw); err != nil || n != size {
			return nil, errors.Join(fmt.Errorf("SNAPPY: %d bytes, expected %d", n, size), err)
		}
		out, err = s2.Decode(make([]byte, size), raw)
	case codec == gzipped:
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(raw)); err == nil {
			out, err = readExactly(z, size)
		}
	case codec == brotlied:
		out, err = readExactly(brotli.NewReader(bytes.NewReader(raw)), size)
	case codec == lz4Framed:
		out, err = unpackLZ4(raw, size)
	case codec == zstandard:
		if d.zstd == nil {
			if d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true)); err != nil {
				return nil, err
			}
		}
		out, err = d.zstd.DecodeAll(raw, make([]byte, 0, size))
	case codec == lz4Raw:
		out = make([]byte, size)
		err = column.LZ4Block(out, raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", codecs[codec], err)
	}
	if len(out) != size {
		return nil, fmt.Errorf("%s: %d bytes, expected %d", codecs[codec], len(out), size)
	}
	return out, nil
}

// readExactly reads size bytes and the end behind them.
func readExactly(r io.Reader, size int) ([]byte, error) {
	out := make([]byte, size)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, err
	}
	var more [1]byte
	if n, err := r.Read(more[:]); n > 0 || !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("more than %d bytes", size), err)
	}
	return out, nil
}

// unpackLZ4 decompresses what writers call LZ4: parquet-mr writes Hadoop's blocks, Arrow up to 0.14 wrote frames, and
// up to 2.0 single blocks.
func unpackLZ4(raw []byte, size int) ([]byte, error) {
	out := make([]byte, size)
	if column.IsLZ4Frame(raw) {
		return out, column.LZ4Frame(out, raw)
	}
	if column.LZ4Hadoop(out, raw) == nil {
		return out, nil
	}
	return out, column.LZ4Block(out, raw)
}

func (d *decompressor) close() {
	if d.zstd != nil {
		d.zstd.Close()
	}
}
