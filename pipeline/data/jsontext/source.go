package jsontext

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// source is a buffered stream with a cursor.
type source struct {
	r        io.Reader
	buf      []byte
	pos, end int   // of the bytes that are not read yet
	base     int64 // offset of the buffer in the stream
	line     int64 // of the cursor, from 1; 0: not known
	limit    int64 // offset that the cursor may not pass; 0: none
	most     int64 // bytes of the object that limit ends
	err      error // of the stream
	tooLong  bool
}

func (s *source) offset() int64 { return s.base + int64(s.pos) }

// fill reports whether n bytes are at the cursor. n is small.
func (s *source) fill(n int) bool {
	if s.end-s.pos >= n {
		return true
	}
	return s.more(n)
}

func (s *source) more(n int) bool {
	if s.limit > 0 && s.offset() > s.limit {
		s.tooLong = true
		return false
	}
	if s.buf == nil {
		s.buf = make([]byte, bufferSize)
	}
	copy(s.buf, s.buf[s.pos:s.end])
	s.base += int64(s.pos)
	s.end -= s.pos
	s.pos = 0
	for s.end < n && s.err == nil {
		var m int
		m, s.err = s.r.Read(s.buf[s.end:])
		s.end += m
	}
	return s.end >= n
}

// failed is the error of the stream before its end, or of an object that is too long.
func (s *source) failed() error {
	switch {
	case s.tooLong:
		return fmt.Errorf("longer than %d bytes", s.most)
	case s.err != nil && !errors.Is(s.err, io.EOF) && s.pos == s.end:
		return s.err
	}
	return nil
}

// peek is the byte at the cursor, which fill has found; 0 at the end.
func (s *source) peek() byte {
	if !s.fill(1) {
		return 0
	}
	return s.buf[s.pos]
}

// space goes to the next byte that is no space, and reports whether there is one.
func (s *source) space() bool {
	for s.blanks() {
		if s.buf[s.pos] != '\n' {
			return true
		}
		s.pos++
		if s.line > 0 {
			s.line++
		}
	}
	return false
}

// blanks is space that stops at the end of a line, too.
func (s *source) blanks() bool {
	for s.fill(1) {
		if c := s.buf[s.pos]; c != ' ' && c != '\t' && c != '\r' {
			return true
		}
		s.pos++
	}
	return false
}

// quote shows what stands at the cursor.
func (s *source) quote() string {
	s.fill(40)
	rest := s.buf[s.pos:min(s.end, s.pos+40)]
	if i := bytes.IndexByte(rest, '\n'); i > 0 {
		rest = rest[:i]
	}
	return fmt.Sprintf("%q", bytes.TrimRight(rest, "\r"))
}
