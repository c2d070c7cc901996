package jsontext

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// notJSON is the error of a byte that the grammar does not allow.
func (r *Reader) notJSON(expected string) error {
	if err := r.in.failed(); err != nil {
		return err
	}
	if !r.in.fill(1) {
		return errors.Join(r.in.failed(), errors.New("not a JSON object: the file ends within it"))
	}
	return fmt.Errorf("not a JSON object: found %s, expected %s", r.in.quote(), expected)
}

// members reads an object. member is called with each key, and reads its value.
func (r *Reader) members(depth int, member func(key []byte) error) error {
	return r.list('}', depth, func() error {
		if r.in.peek() != '"' {
			return r.notJSON("a key")
		}
		var err error
		if r.key, err = r.str(r.key[:0]); err != nil {
			return err
		}
		if !r.in.space() || r.in.peek() != ':' {
			return r.notJSON("a colon")
		}
		r.in.pos++
		if !r.in.space() {
			return r.notJSON("a value")
		}
		return member(r.key)
	})
}

// list reads what stands in brackets, up to end. item reads an item and is called at its first byte.
func (r *Reader) list(end byte, depth int, item func() error) error {
	if depth > maxDepth {
		return fmt.Errorf("not a JSON object: more than %d brackets in one another", maxDepth)
	}
	r.in.pos++
	if r.in.space() && r.in.peek() == end {
		r.in.pos++
		return nil
	}
	for {
		if !r.in.space() {
			return r.notJSON("")
		}
		if err := item(); err != nil {
			return err
		}
		if !r.in.space() {
			return r.notJSON("")
		}
		switch r.in.peek() {
		case ',':
			r.in.pos++
		case end:
			r.in.pos++
			return nil
		default:
			return r.notJSON(fmt.Sprintf("a comma or %q", end))
		}
	}
}

// skip reads a value.
func (r *Reader) skip(depth int) error {
	switch r.in.peek() {
	case '{':
		return r.members(depth, func([]byte) error { return r.skip(depth + 1) })
	case '[':
		return r.list(']', depth, func() error { return r.skip(depth + 1) })
	case '"':
		return r.skipString()
	}
	_, err := r.scalar()
	return err
}

// scalar reads a number, null, true, false, or what Python writes for numbers that are none.
func (r *Reader) scalar() (text string, err error) {
	switch c := r.in.peek(); c {
	case 'n', 't', 'f', 'N', 'I':
		text = map[byte]string{'n': "null", 't': "true", 'f': "false", 'N': "NaN", 'I': "Infinity"}[c]
		return text, r.literal(text)
	}
	return r.numeral()
}

func (r *Reader) literal(want string) error {
	for i := range len(want) {
		if !r.in.fill(1) || r.in.peek() != want[i] {
			return r.notJSON(want)
		}
		r.in.pos++
	}
	return nil
}

// maxNumeral bounds the digits of a number.
const maxNumeral = 4096

func (r *Reader) numeral() (string, error) {
	var text []byte
	for len(text) < maxNumeral && r.in.fill(1) {
		c := r.in.peek()
		if c == 'I' && string(text) == "-" {
			return "-Infinity", r.literal("Infinity")
		}
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			break
		}
		text = append(text, c)
		r.in.pos++
	}
	if !isNumber(text) {
		if len(text) > 0 {
			return "", fmt.Errorf("not a JSON object: found %.40q, expected a number", text)
		}
		return "", r.notJSON("a value")
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
func (r *Reader) str(dst []byte) ([]byte, error) {
	r.in.pos++
	for r.in.fill(1) {
		b := r.in.buf[r.in.pos:r.in.end]
		n := plain(b)
		dst = append(dst, b[:n]...)
		r.in.pos += n
		if n == len(b) {
			continue
		}
		switch b[n] {
		case '"':
			r.in.pos++
			return dst, nil
		case '\\':
			var err error
			if dst, err = r.escape(dst); err != nil {
				return nil, err
			}
		default:
			return nil, r.notJSON("an escape such as \\n in a string")
		}
	}
	return nil, r.notJSON("")
}

// skipString is str without the content.
func (r *Reader) skipString() error {
	r.in.pos++
	var ignored [utf8.UTFMax * 2]byte
	for r.in.fill(1) {
		b := r.in.buf[r.in.pos:r.in.end]
		n := plain(b)
		r.in.pos += n
		if n == len(b) {
			continue
		}
		switch b[n] {
		case '"':
			r.in.pos++
			return nil
		case '\\':
			if _, err := r.escape(ignored[:0]); err != nil {
				return err
			}
		default:
			return r.notJSON("an escape such as \\n in a string")
		}
	}
	return r.notJSON("")
}

var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape appends what an escape stands for. The cursor is at its backslash.
func (r *Reader) escape(dst []byte) ([]byte, error) {
	if !r.in.fill(2) {
		return nil, r.notJSON("")
	}
	c := r.in.buf[r.in.pos+1]
	if c != 'u' {
		if escapes[c] == 0 {
			return nil, fmt.Errorf("not a JSON object: found the escape %q in a string", []byte{'\\', c})
		}
		r.in.pos += 2
		return append(dst, escapes[c]), nil
	}
	unit, err := r.unit()
	if err != nil {
		return nil, err
	}
	r.in.pos += unitLength
	if !utf16.IsSurrogate(unit) {
		return utf8.AppendRune(dst, unit), nil
	}
	if r.in.fill(2) && r.in.buf[r.in.pos] == '\\' && r.in.buf[r.in.pos+1] == 'u' {
		low, err := r.unit()
		if err != nil {
			return nil, err
		}
		if pair := utf16.DecodeRune(unit, low); pair != utf8.RuneError {
			r.in.pos += unitLength
			return utf8.AppendRune(dst, pair), nil
		}
	}
	r.halves++
	return utf8.AppendRune(dst, utf8.RuneError), nil
}

const unitLength = len(`\u0000`)

// unit is the UTF-16 unit of an escape at the cursor, which stays there.
func (r *Reader) unit() (rune, error) {
	if !r.in.fill(unitLength) {
		return 0, r.notJSON("")
	}
	text := string(r.in.buf[r.in.pos : r.in.pos+unitLength])
	n, err := strconv.ParseUint(text[2:], 16, 16)
	if err != nil {
		return 0, fmt.Errorf("not a JSON object: found the escape %q in a string", text)
	}
	return rune(n), nil
}
