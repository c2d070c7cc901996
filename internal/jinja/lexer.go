package jinja

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind int

const (
	tokenEnd kind = iota
	tokenData
	tokenPrint    // {{
	tokenPrintEnd // }}
	tokenTag      // {%
	tokenTagEnd   // %}
	tokenName
	tokenString
	tokenNumber
	tokenOperator
)

type token struct {
	kind  kind
	text  string // of names, strings, operators and data
	value any    // of numbers
	line  int
}

var (
	newlines  = regexp.MustCompile(`\r\n|\r|\n`)
	rawBegin  = regexp.MustCompile(`^\{%([-+]?)[\s]*raw[\s]*(-%\}[\s]*|%\})`)
	rawEnd    = regexp.MustCompile(`(?s)\{%([-+]?)\s*endraw\s*(\+%\}|-%\}\s*|%\}\n?)`)
	floatText = regexp.MustCompile(`^(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)`)
	intText   = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)`)
	quoted    = regexp.MustCompile(`(?s)^(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")`)
)

// operators stand with the longest first.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
	"=", ".", ":", "|", ",", ";"}

// lexer splits a template into tokens. It follows jinja2.lexer.
type lexer struct {
	source      string
	at          int
	line        int
	lineStarted bool // the last token ended with a line break
	tokens      []token
}

func lex(source string) []token {
	source = newlines.ReplaceAllString(source, "\n")
	l := &lexer{source: strings.TrimSuffix(source, "\n"), line: 1, lineStarted: true}
	for l.at < len(l.source) {
		l.root()
	}
	l.add(token{kind: tokenEnd})
	return l.tokens
}

func (l *lexer) add(t token) {
	t.line = l.line
	l.tokens = append(l.tokens, t)
}

// take moves behind the next n bytes.
func (l *lexer) take(n int) string {
	text := l.source[l.at : l.at+n]
	l.at += n
	l.line += strings.Count(text, "\n")
	if n > 0 {
		l.lineStarted = text[n-1] == '\n'
	}
	return text
}

// root reads text up to the next tag, and the tag.
func (l *lexer) root() {
	rest := l.source[l.at:]
	i := 0
	for ; i < len(rest)-1; i++ {
		if rest[i] == '{' && (rest[i+1] == '{' || rest[i+1] == '%' || rest[i+1] == '#') {
			break
		}
	}
	if i >= len(rest)-1 {
		l.add(token{kind: tokenData, text: l.take(len(rest))})
		return
	}
	text, tag, started := rest[:i], rest[i+1], l.lineStarted
	sign := byte(0)
	if i+2 < len(rest) && (rest[i+2] == '-' || rest[i+2] == '+') {
		sign = rest[i+2]
	}
	text = stripBefore(text, sign, tag != '{', started)
	l.add(token{kind: tokenData, text: text})
	l.take(i)
	if m := rawBegin.FindStringSubmatch(l.source[l.at:]); m != nil {
		l.take(len(m[0]) - len(m[2]))
		l.endTag(m[2][:strings.Index(m[2], "}")+1], false)
		l.raw()
		return
	}
	n := 2
	if sign != 0 {
		n++
	}
	l.take(n)
	switch tag {
	case '{':
		l.add(token{kind: tokenPrint})
		l.inside("}}", tokenPrintEnd)
	case '%':
		l.add(token{kind: tokenTag})
		l.inside("%}", tokenTagEnd)
	default:
		l.comment()
	}
}

// stripBefore removes the space before a tag that a minus sign or lstrip_blocks takes.
func stripBefore(text string, sign byte, block, started bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || !block {
		return text
	}
	begin := strings.LastIndexByte(text, '\n') + 1
	if (begin > 0 || started) && strings.TrimLeftFunc(text[begin:], isSpace) == "" {
		return text[:begin]
	}
	return text
}

// endTag moves behind the end of a tag, and behind what its sign, or trim_blocks, takes after it.
func (l *lexer) endTag(end string, trim bool) {
	l.take(len(end))
	if end[0] == '-' {
		rest := l.source[l.at:]
		l.take(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
	} else if trim && end[0] != '+' && strings.HasPrefix(l.source[l.at:], "\n") {
		l.take(1)
	}
}

func (l *lexer) comment() {
	i := strings.Index(l.source[l.at:], "#}")
	if i < 0 {
		failAt(l.line, "a comment has no end")
	}
	if i > 0 && strings.ContainsRune("-+", rune(l.source[l.at+i-1])) {
		i--
	}
	l.take(i)
	l.endTag(l.source[l.at:l.at+strings.Index(l.source[l.at:], "}")+1], true)
}

func (l *lexer) raw() {
	m := rawEnd.FindStringSubmatchIndex(l.source[l.at:])
	if m == nil {
		failAt(l.line, "raw has no endraw")
	}
	rest, started := l.source[l.at:], l.lineStarted
	sign := byte(0)
	if m[3] > m[2] {
		sign = rest[m[2]]
	}
	l.add(token{kind: tokenData, text: stripBefore(rest[:m[0]], sign, true, started)})
	l.take(m[4])
	end := rest[m[4]:]
	l.endTag(end[:strings.Index(end, "}")+1], true)
}

// inside reads the tokens of a tag and its end. Brackets that are open keep the end from being one.
func (l *lexer) inside(end string, last kind) {
	open := []byte{}
	for {
		rest := l.source[l.at:]
		if rest == "" {
			return // the parser expects the end of the tag
		}
		if len(open) == 0 {
			sign := 0
			if rest[0] == '-' || rest[0] == '+' && last == tokenTagEnd {
				sign = 1
			}
			if strings.HasPrefix(rest[sign:], end) {
				l.add(token{kind: last})
				l.endTag(rest[:sign+2], last == tokenTagEnd)
				return
			}
		}
		open = l.token(rest, open)
	}
}

// token reads one token, and returns the brackets that are open after it.
func (l *lexer) token(rest string, open []byte) []byte {
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case isSpace(r):
		l.take(size)
	case r >= '0' && r <= '9':
		l.number(rest)
	case r == '_' || unicode.IsLetter(r):
		n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.In(r, unicode.L, unicode.N, unicode.Mn, unicode.Mc) })
		if n < 0 {
			n = len(rest)
		}
		l.add(token{kind: tokenName, text: rest[:n]})
		l.take(n)
	case r == '\'' || r == '"':
		text := quoted.FindString(rest)
		if text == "" {
			failAt(l.line, "a string has no end")
		}
		l.add(token{kind: tokenString, text: unescape(text[1:len(text)-1], l.line)})
		l.take(len(text))
	default:
		return l.operator(rest, open)
	}
	return open
}

func (l *lexer) number(rest string) {
	text := ""
	if l.at == 0 || l.source[l.at-1] != '.' {
		text = floatText.FindString(rest)
	}
	if text != "" {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64) // too large is infinite, as in Python
		l.add(token{kind: tokenNumber, value: f})
		l.take(len(text))
		return
	}
	text = intText.FindString(rest)
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 0, 64)
	if err != nil {
		failAt(l.line, "the integer %s has more than 64 bits, which is not supported", text)
	}
	l.add(token{kind: tokenNumber, value: n})
	l.take(len(text))
}

var closing = map[string]byte{")": '(', "]": '[', "}": '{'}

func (l *lexer) operator(rest string, open []byte) []byte {
	for _, o := range operators {
		if !strings.HasPrefix(rest, o) {
			continue
		}
		switch begin := closing[o]; {
		case strings.Contains("([{", o):
			open = append(open, o[0])
		case begin != 0 && (len(open) == 0 || open[len(open)-1] != begin):
			failAt(l.line, "found %q, which closes nothing", o)
		case begin != 0:
			open = open[:len(open)-1]
		}
		l.add(token{kind: tokenOperator, text: o})
		l.take(len(o))
		return open
	}
	r, _ := utf8.DecodeRuneInString(rest)
	failAt(l.line, "found %q, expected an expression", r)
	return nil
}

// unescape replaces the escape sequences of Python's strings.
func unescape(text string, line int) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b.WriteByte(text[i])
			continue
		}
		i++
		simple := strings.IndexByte("\n\\'\"abfnrtv", text[i])
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[i]]
		switch {
		case simple == 0: // the line goes on
		case simple > 0:
			b.WriteByte("\n\\'\"\a\b\f\n\r\t\v"[simple])
		case digits > 0:
			if i+digits >= len(text) {
				failAt(line, "found an incomplete escape sequence \\%c", text[i])
			}
			n, err := strconv.ParseUint(text[i+1:i+1+digits], 16, 32)
			if err != nil || !utf8.ValidRune(rune(n)) {
				failAt(line, "found the escape sequence \\%s, which is no character", text[i:i+1+digits])
			}
			b.WriteRune(rune(n))
			i += digits
		case text[i] >= '0' && text[i] <= '7':
			n, end := 0, i
			for ; end < len(text) && end < i+3 && text[end] >= '0' && text[end] <= '7'; end++ {
				n = n*8 + int(text[end]-'0')
			}
			b.WriteRune(rune(n))
			i = end - 1
		case text[i] == 'N':
			failAt(line, "names of characters (\\N{…}) are not supported")
		default:
			b.WriteString(text[i-1 : i+1])
		}
	}
	return b.String()
}

// isSpace reports whether Python's str.isspace holds for a character.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}
