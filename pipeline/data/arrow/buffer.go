package arrow

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
	"github.com/klauspost/compress/zstd"
)

const (
	maxBuffer    = 512 << 20 // of a buffer that was compressed
	maxExpansion = 256       // of a buffer of more than freeBuffer bytes
	freeBuffer   = 32 << 20
	bufferNone   = -1 // a compressed batch stores a buffer as it is
	codecLZ4     = 0
	codecZstd    = 1
	windowSize   = 1 << 16
)

// buffer is the bytes of a buffer of a record batch: a window in memory of the bytes in the file, or all of them.
type buffer struct {
	file   io.ReaderAt
	at     int64 // in the file
	size   int64
	window []byte
	start  int64 // of the window
}

// bytes returns n bytes of the buffer, which do not change.
func (b *buffer) bytes(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at > b.size-n {
		return nil, fmt.Errorf("%d bytes at %d of a buffer of %d", n, at, b.size)
	}
	if at >= b.start && at+n <= b.start+int64(len(b.window)) {
		return b.window[at-b.start:][:n:n], nil
	}
	window := make([]byte, max(n, min(windowSize, b.size-at)))
	if err := column.ReadAt(b.file, window, b.at+at); err != nil {
		return nil, err
	}
	if n <= windowSize { // held bounds what the buffer keeps
		b.window, b.start = window, at
	}
	return window[:n:n], nil
}

// held bounds the bytes of memory that the buffer keeps.
func (b *buffer) held() int64 {
	if b.file == nil {
		return b.size
	}
	return min(windowSize, b.size)
}

// integer returns the number of 1, 2, 4 or 8 bytes at an index. An unsigned one above 2^63 − 1 becomes negative.
func (b *buffer) integer(index, bytes int64, signed bool) (int64, error) {
	raw, err := b.bytes(index*bytes, bytes)
	if err != nil {
		return 0, err
	}
	var word [8]byte
	copy(word[:], raw)
	x := int64(binary.LittleEndian.Uint64(word[:]))
	if unused := 64 - 8*bytes; signed {
		x = x << unused >> unused
	}
	return x, nil
}

// batch opens the buffers of a record batch.
type batch struct {
	file    *File
	message *message
	header  table
	unzip   *unzip
}

// rows is the number of rows that the batch declares.
func (b *batch) rows() int64 { return b.header.i64(recordBatchLength) }

// node returns the declared rows and nulls of a field.
func (b *batch) node(index int) (rows, nulls int64, err error) {
	at, n := b.header.vector(recordBatchNodes, 16)
	if index >= n {
		return 0, 0, fmt.Errorf("%d nodes, expected at least %d", n, index+1)
	}
	return b.message.metadata.i64(at + 16*index), b.message.metadata.i64(at + 16*index + 8), b.message.metadata.err
}

// first is the index of the first buffer at a place: buffers of views come on top.
func (b *batch) first(at place) (int, error) {
	index := at.buffers
	for i := range at.views {
		n, err := b.variadic(i)
		if err != nil {
			return 0, err
		}
		index += n
	}
	return index, nil
}

// variadic is the number of variadic buffers of a view.
func (b *batch) variadic(view int) (int, error) {
	counts, n := b.header.vector(recordBatchVariadicBufferCounts, 8)
	if view >= n {
		return 0, fmt.Errorf("%d counts of buffers, expected at least %d", n, view+1)
	}
	_, buffers := b.header.vector(recordBatchBuffers, 16)
	count := b.message.metadata.i64(counts + 8*view)
	if count < 0 || count > int64(buffers) {
		return 0, fmt.Errorf("%d buffers of a view", count)
	}
	return int(count), b.message.metadata.err
}

// place returns where a buffer lies in the file.
func (b *batch) place(index int) (at, length int64, err error) {
	vector, n := b.header.vector(recordBatchBuffers, 16)
	if index >= n {
		return 0, 0, fmt.Errorf("%d buffers, expected at least %d", n, index+1)
	}
	m := b.message
	offset, length := m.metadata.i64(vector+16*index), m.metadata.i64(vector+16*index+8)
	switch {
	case m.metadata.err != nil:
		return 0, 0, m.metadata.err
	case offset < 0 || length < 0 || offset > m.length || length > m.length-offset:
		return 0, 0, fmt.Errorf("a buffer of %d bytes at %d of a body of %d", length, offset, m.length)
	}
	return m.body + offset, length, nil
}

// buffer opens a buffer.
func (b *batch) buffer(index int) (*buffer, error) {
	at, length, err := b.place(index)
	if err != nil {
		return nil, err
	}
	compression := b.header.table(recordBatchCompression)
	if compression.at == 0 || length == 0 {
		return &buffer{file: b.file.r, at: at, size: length}, nil
	}
	var head [8]byte
	if length < int64(len(head)) {
		return nil, fmt.Errorf("a compressed buffer of %d bytes", length)
	}
	if err := column.ReadAt(b.file.r, head[:], at); err != nil {
		return nil, err
	}
	at, length = at+int64(len(head)), length-int64(len(head))
	size := int64(binary.LittleEndian.Uint64(head[:]))
	switch {
	case size == bufferNone:
		return &buffer{file: b.file.r, at: at, size: length}, nil
	case size < 0 || size > maxBuffer || length > maxBuffer:
		return nil, fmt.Errorf("a compressed buffer of %d bytes, expected at most %d", size, maxBuffer)
	case size > freeBuffer && size > maxExpansion*length:
		return nil, fmt.Errorf("a buffer that expands from %d to %d bytes, expected at most %d times as many", length, size, maxExpansion)
	}
	raw := make([]byte, length)
	if err := column.ReadAt(b.file.r, raw, at); err != nil {
		return nil, err
	}
	content, err := b.unzip.decompress(compression.byte(bodyCompressionCodec), raw, size)
	return &buffer{window: content, size: size}, err
}

// unzip decompresses buffers. It keeps the state of zstd.
type unzip struct{ zstd *zstd.Decoder }

// decompress returns exactly size bytes.
func (u *unzip) decompress(codec byte, raw []byte, size int64) (out []byte, err error) {
	switch codec {
	case codecLZ4:
		out = make([]byte, size)
		return out, column.LZ4Frame(out, raw)
	case codecZstd:
		if u.zstd == nil {
			if u.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true)); err != nil {
				return nil, err
			}
		}
		if out, err = u.zstd.DecodeAll(raw, make([]byte, 0, size)); err != nil {
			return nil, fmt.Errorf("ZSTD: %w", err)
		}
	default:
		return nil, fmt.Errorf("buffers compressed by codec %d, expected LZ4 or ZSTD", codec)
	}
	if int64(len(out)) != size {
		return nil, fmt.Errorf("ZSTD: %d bytes, expected %d", len(out), size)
	}
	return out, nil
}

func (u *unzip) close() {
	if u.zstd != nil {
		u.zstd.Close()
	}
}
