package oniguruma

import (
	"errors"
	"unicode/utf8"
)

// character reads the rest of an escape that stands for a character, after its letter. isCode reports that it is
// written as a number.
func (p *parser) character(letter rune) (r rune, isCode bool, err error) {
	switch {
	case (letter == 'x' || letter == 'o') && p.peek() == '{':
		return p.braced(letter)
	case letter == 'x' && !p.done():
		return p.encoded(p.number(16, 2), 16)
	case letter == 'u' && !p.done():
		from := p.at
		r = p.number(16, 4)
		if p.at-from < 4 {
			return 0, true, errors.New(`\u without four digits`)
		}
		r, err = checkCode(r)
		return r, true, err
	case letter >= '0' && letter <= '7':
		p.at--
		r = p.number(8, 3)
		if r > 0xFF {
			return 0, true, errors.New("an octal number above 377")
		}
		return p.encoded(r, 8)
	case letter == 'c', letter == 'C', letter == 'M':
		return p.control(letter)
	}
	if v, ok := controls[letter]; ok {
		return v, true, nil
	}
	return letter, false, nil
}

// controls are the escapes of control characters.
var controls = map[rune]rune{'n': '\n', 't': '\t', 'r': '\r', 'f': '\f', 'a': '\a', 'b': '\b', 'e': 0x1B, 'v': '\v'}

// number reads at most so many digits; 0 if there are none.
func (p *parser) number(base rune, most int) (n rune) {
	for ; most > 0 && !p.done(); most-- {
		d := digit(p.src[p.at])
		if d >= base {
			break
		}
		n = n*base + d
		p.at++
	}
	return n
}

func digit(r rune) rune {
	switch {
	case r >= '0' && r <= '9':
		return r - '0'
	case r >= 'a' && r <= 'f':
		return r - 'a' + 10
	case r >= 'A' && r <= 'F':
		return r - 'A' + 10
	}
	return 99
}

// braced reads {…} of \x{…} and \o{…}.
func (p *parser) braced(letter rune) (rune, bool, error) {
	base, from := rune(16), p.at
	if letter == 'o' {
		base = 8
	}
	p.at++
	first := p.at
	code := int64(0)
	for ; !p.done() && digit(p.src[p.at]) < base; p.at++ {
		if code = code*int64(base) + int64(digit(p.src[p.at])); code > 1<<31 {
			return 0, true, errors.New("a number of a character that is too large")
		}
	}
	if p.at == first { // not a number: the letter itself
		p.at = from
		return letter, false, nil
	}
	if !p.take('}') {
		return 0, true, errors.New(`several characters in \x{…}, which is not supported`)
	}
	r, err := checkCode(rune(min(code, 1<<30)))
	return r, true, err
}

func checkCode(r rune) (rune, error) {
	if !utf8.ValidRune(r) {
		return 0, errors.New("a number that is no character")
	}
	return r, nil
}

// encoded returns the character whose first byte is known: the other bytes of its UTF-8 follow, written alike.
func (p *parser) encoded(b rune, base int) (rune, bool, error) {
	if b < utf8.RuneSelf {
		return b, true, nil
	}
	bytes := []byte{byte(b)}
	for !utf8.FullRune(bytes) && p.at+1 < len(p.src) && p.src[p.at] == '\\' {
		save := p.at
		p.at++
		if base == 16 {
			if !p.take('x') {
				p.at = save
				break
			}
			bytes = append(bytes, byte(p.number(16, 2)))
		} else {
			bytes = append(bytes, byte(p.number(8, 3)))
		}
	}
	r, n := utf8.DecodeRune(bytes)
	if n != len(bytes) || r == utf8.RuneError {
		return 0, true, errors.New("bytes that are not UTF-8")
	}
	return r, true, nil
}

// control reads \cX, \C-X and \M-X.
func (p *parser) control(letter rune) (rune, bool, error) {
	if letter != 'c' && !p.take('-') {
		return 0, true, errors.New(`\C or \M without -`)
	}
	if p.done() {
		return 0, true, errors.New("a control character without its letter")
	}
	r := p.src[p.at]
	p.at++
	switch {
	case letter == 'M':
		return 0, true, errors.New(`\M, which is not UTF-8`)
	case r == '?':
		return 0x7F, true, nil
	case r == '\\':
		return 0, true, errors.New("an escape in a control character, which is not supported")
	}
	return r & 0x9F, true, nil
}
