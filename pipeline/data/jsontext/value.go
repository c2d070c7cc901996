package jsontext

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads the values of JSON in a stream.
type scanner struct {
	source
	key    []byte // the last one
	halves int64  // surrogates in strings that had no other half
}

// notJSON is the error of a byte that the grammar does not allow.
func (s *scanner) notJSON(expected string) error {
	if err := s.failed(); err != nil {
		return err
	}
	if !s.fill(1) {
		return errors.Join(s.failed(), errors.New("not a JSON object: the file ends within it"))
	}
	return fmt.Errorf("not a JSON object: found %s, expected %s", s.quote(), expected)
}

// members reads an object. member is called with each key, and reads its value.
func (s *scanner) members(depth int, member func(key []byte) error) error {
	return s.list('}', depth, func() error {
		if s.peek() != '"' {
			return s.notJSON("a key")
		}
		var err error
		if s.key, err = s.str(s.key[:0]); err != nil {
			return err
		}
		if !s.space() || s.peek() != ':' {
			return s.notJSON("a colon")
		}
		s.pos++
		if !s.space() {
			return s.notJSON("a value")
		}
		return member(s.key)
	})
}

// list reads what stands in brackets, up to end. item reads an item and is called at its first byte.
func (s *scanner) list(end byte, depth int, item func() error) error {
	if depth > maxDepth {
		return fmt.Errorf("not a JSON object: more than %d brackets in one another", maxDepth)
	}
	s.pos++
	if s.space() && s.peek() == end {
		s.pos++
		return nil
	}
	for {
		if !s.space() {
			return s.notJSON("")
		}
		if err := item(); err != nil {
			return err
		}
		if !s.space() {
			return s.notJSON("")
		}
		switch s.peek() {
		case ',':
			s.pos++
		case end:
			s.pos++
			return nil
		default:
			return s.notJSON(fmt.Sprintf("a comma or %q", end))
		}
	}
}

// skip reads a value.
func (s *scanner) skip(depth int) error {
	switch s.peek() {
	case '{':
		return s.members(depth, func([]byte) error { return s.skip(depth + 1) })
	case '[':
		return s.list(']', depth, func() error { return s.skip(depth + 1) })
	case '"':
		return s.skipString()
	}
	_, err := s.scalar()
	return err
}

// scalar reads a number, null, true, false, or what Python writes for numbers that are none.
func (s *scanner) scalar() (text string, err error) {
	switch c := s.peek(); c {
	case 'n', 't', 'f', 'N', 'I':
		text = map[byte]string{'n': "null", 't': "true", 'f': "false", 'N': "NaN", 'I': "Infinity"}[c]
		return text, s.literal(text)
	}
	return s.numeral()
}

func (s *scanner) literal(want string) error {
	for i := range len(want) {
		if !s.fill(1) || s.peek() != want[i] {
			return s.notJSON(want)
		}
		s.pos++
	}
	return nil
}

// maxNumeral bounds the digits of a number.
const maxNumeral = 4096

func (s *scanner) numeral() (string, error) {
	var text []byte
	for len(text) < maxNumeral && s.fill(1) {
		c := s.peek()
		if c == 'I' && string(text) == "-" {
			return "-Infinity", s.literal("Infinity")
		}
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			break
		}
		text = append(text, c)
		s.pos++
	}
	if !isNumber(text) {
		if len(text) > 0 {
			return "", fmt.Errorf("not a JSON object: found %.40q, expected a number", text)
		}
		return "", s.notJSON("a value")
	}
	return fmt.Sprintf("%.40s", text), nil
}

// isNumber reports whether text is a number of JSON: an integer, a fraction and an exponent.
func isNumber(text []byte) bool {
	digits := func() bool {
		n := 0
		for n < len(text) && '0' <= text[n] && text[n] <= '9' {
			n++
		}
		text = text[n:]
		return n > 0
	}
	if len(text) > 0 && text[0] == '-' {
		text = text[1:]
	}
	if len(text) > 1 && text[0] == '0' && '0' <= text[1] && text[1] <= '9' || !digits() {
		return false
	}
	if len(text) > 0 && text[0] == '.' {
		if text = text[1:]; !digits() {
			return false
		}
	}
	if len(text) > 0 && (text[0] == 'e' || text[0] == 'E') {
		if text = text[1:]; len(text) > 0 && (text[0] == '+' || text[0] == '-') {
			text = text[1:]
		}
		if !digits() {
			return false
		}
	}
	return len(text) == 0
}

// plain is the length of the bytes of a string that stand for themselves.
func plain(b []byte) int {
	for i, c := range b {
		if c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return len(b)
}

// str appends the content of a string to dst. The cursor is at its quotation mark.
func (s *scanner) str(dst []byte) ([]byte, error) { return s.content(dst, true) }

// skipString is str without the content.
func (s *scanner) skipString() error {
	var ignored [utf8.UTFMax * 2]byte
	_, err := s.content(ignored[:0], false)
	return err
}

func (s *scanner) content(dst []byte, keep bool) (_ []byte, err error) {
	s.pos++
	for s.fill(1) {
		b := s.buf[s.pos:s.end]
		n := plain(b)
		if keep {
			dst = append(dst, b[:n]...)
		}
		s.pos += n
		if n == len(b) {
			continue
		}
		switch b[n] {
		case '"':
			s.pos++
			return dst, nil
		case '\\':
			if dst, err = s.escape(dst); err != nil {
				return nil, err
			}
			if !keep {
				dst = dst[:0]
			}
		default:
			return nil, s.notJSON("an escape such as \\n in a string")
		}
	}
	return nil, s.notJSON("")
}

var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape appends what an escape stands for. The cursor is at its backslash.
func (s *scanner) escape(dst []byte) ([]byte, error) {
	if !s.fill(2) {
		return nil, s.notJSON("")
	}
	c := s.buf[s.pos+1]
	if c != 'u' {
		if escapes[c] == 0 {
			return nil, fmt.Errorf("not a JSON object: found the escape %q in a string", []byte{'\\', c})
		}
		s.pos += 2
		return append(dst, escapes[c]), nil
	}
	unit, err := s.unit()
	if err != nil {
		return nil, err
	}
	s.pos += unitLength
	if !utf16.IsSurrogate(unit) {
		return utf8.AppendRune(dst, unit), nil
	}
	if s.fill(2) && s.buf[s.pos] == '\\' && s.buf[s.pos+1] == 'u' {
		low, err := s.unit()
		if err != nil {
			return nil, err
		}
		if pair := utf16.DecodeRune(unit, low); pair != utf8.RuneError {
			s.pos += unitLength
			return utf8.AppendRune(dst, pair), nil
		}
	}
	s.halves++
	return utf8.AppendRune(dst, utf8.RuneError), nil
}

const unitLength = len(`\u0000`)

// unit is the UTF-16 unit of an escape at the cursor, which stays there.
func (s *scanner) unit() (rune, error) {
	if !s.fill(unitLength) {
		return 0, s.notJSON("")
	}
	text := string(s.buf[s.pos : s.pos+unitLength])
	n, err := strconv.ParseUint(text[2:], 16, 16)
	if err != nil {
		return 0, fmt.Errorf("not a JSON object: found the escape %q in a string", text)
	}
	return rune(n), nil
}
