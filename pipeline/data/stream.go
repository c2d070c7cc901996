package data

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

type compression int

const (
	compressedNot compression = iota
	compressedGzip
	compressedZstd
)

// inputStream is the content of a file, decompressed.
type inputStream struct {
	io.Reader
	file     *os.File
	counted  *countingReader // of the file's bytes; nil: not compressed
	reported int64           // bytes of them that took has returned
	size     int64           // of the content, or unknownSize
	close    func()
}

const (
	// A stream may be this many times as long as its compressed bytes, and freeStream bytes longer.
	maxExpansion = 256
	freeStream   = 64 << 20
	zstdWindow   = 128 << 20 // of zstd --long=27

	unknownSize = 1 << 62
)

func openStream(path string, c compression) (s *inputStream, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s = &inputStream{Reader: f, file: f, size: unknownSize, close: func() {}}
	switch c {
	case compressedNot:
		var st os.FileInfo
		if st, err = f.Stat(); err == nil {
			s.size = st.Size()
		}
	case compressedGzip:
		s.counted = &countingReader{r: f}
		var z *gzip.Reader
		if z, err = gzip.NewReader(s.counted); err == nil {
			s.Reader = &expandingReader{r: z, from: s.counted, name: "gzip"}
		}
	case compressedZstd:
		s.counted = &countingReader{r: f}
		var z *zstd.Decoder
		if z, err = zstd.NewReader(s.counted, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow)); err == nil {
			s.Reader, s.close = &expandingReader{r: z, from: s.counted, name: "zstd"}, z.Close
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// seek goes to an offset of the content.
func (s *inputStream) seek(offset int64) error {
	if s.counted == nil {
		_, err := s.file.Seek(offset, io.SeekStart)
		return err
	}
	_, err := io.CopyN(io.Discard, s, offset)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// took returns how many bytes of the file were read for n more bytes of the content.
func (s *inputStream) took(n int64) int64 {
	if s.counted == nil {
		return n
	}
	n = s.counted.n - s.reported
	s.reported = s.counted.n
	return n
}

func (s *inputStream) Close() error {
	s.close()
	return s.file.Close()
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// expandingReader refuses content that is far longer than its compressed bytes.
type expandingReader struct {
	r    io.Reader
	from *countingReader
	name string
	n    int64
}

func (e *expandingReader) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	e.n += int64(n)
	if expanded(e.n, e.from.n) {
		return 0, fmt.Errorf("%s: %d bytes became more than %d, expected at most %d times as many", e.name, e.from.n, e.n, maxExpansion)
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		// What reads text in blocks takes this error for the end of the file.
		return n, fmt.Errorf("%s: the file is truncated", e.name)
	case err != nil && !errors.Is(err, io.EOF):
		return n, fmt.Errorf("%s: %w", e.name, err)
	}
	return n, err
}

// expanded reports whether content is too long for the bytes of the file it came from.
func expanded(content, file int64) bool { return content > freeStream && content/maxExpansion > file }
