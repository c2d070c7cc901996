package oniguruma

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// classKind is the kind of a token in a class.
type classKind uint8

const (
	charItem  classKind = iota
	setItem             // \d, \p{…}, [:alpha:]
	rangeItem           // -
	openItem            // [
	closeItem           // ]
	andItem             // &&
)

type classToken struct {
	kind    classKind
	r       rune
	set     set
	escaped bool
}

// classState is where the reader of a class stands.
type classState uint8

const (
	atStart  classState = iota
	atValue             // a character or a set was read
	atRange             // a character and - were read
	complete            // a range was read
)

// classReader reads one class. It is prs_cc of Oniguruma.
type classReader struct {
	p      *parser
	parts  []rune // ranges
	left   set    // what stands before the last &&
	hasAnd bool
	high   bool // Oniguruma's bits of the bytes from 0x80 on are set, as a negated class in a class does
	leftHi bool // high before the last &&
	state  classState
	last   rune // the character of atValue and atRange
	isSet  bool // atValue: a set was read
}

// class reads […] after its bracket, and ignores case if the options say so.
func (p *parser) class() (*node, error) {
	c, negative, err := p.bracket()
	if err != nil {
		return nil, err
	}
	s := c.all()
	var more []*node
	if p.current.ignoreCase {
		s, more = unicodeTables().foldSet(s, negative)
	}
	if c.high && len(s.and(set{utf8.RuneSelf, utf8.MaxRune})) == 0 {
		return nil, errors.New("a class in a class that excludes every character outside of ASCII, where Oniguruma is wrong")
	}
	if negative {
		s = s.not()
	}
	n := &node{kind: setNode, set: s}
	if len(more) > 0 {
		return &node{kind: altNode, nodes: append([]*node{n}, more...)}, nil
	}
	return n, nil
}

// bracket reads a class up to and with its closing bracket. negative reports whether it begins with ^; c is without it.
func (p *parser) bracket() (c *classReader, negative bool, err error) {
	if p.depth++; p.depth > maxDepth {
		return nil, false, fmt.Errorf("classes nested more than %d deep", maxDepth)
	}
	defer func() { p.depth-- }()
	c = &classReader{p: p}
	tok, err := p.classToken()
	if err == nil && tok.kind == charItem && tok.r == '^' && !tok.escaped {
		negative = true
		tok, err = p.classToken()
	}
	if err == nil && tok.kind == closeItem {
		if !p.closesLater() {
			return nil, false, errors.New("an empty class")
		}
		tok.kind = charItem
	}
	for err == nil && tok.kind != closeItem {
		tok, err = c.item(tok)
	}
	if err != nil {
		return nil, false, err
	}
	c.and()
	return c, negative, nil
}

// closesLater reports whether a bracket that is not escaped follows.
func (p *parser) closesLater() bool {
	for i := p.at; i < len(p.src); i++ {
		switch p.src[i] {
		case '\\':
			i++
		case ']':
			return true
		}
	}
	return false
}

func (c *classReader) add(s set) { c.parts = append(c.parts, s...) }

func (c *classReader) all() set { return setOf(c.parts...) }

// flush adds a character that begins no range.
func (c *classReader) flush() {
	if c.state == atValue && !c.isSet {
		c.add(set{c.last, c.last})
	}
}

// and ends what stands between two &&, and intersects it with what stands before.
func (c *classReader) and() {
	if c.flush(); c.hasAnd {
		c.parts, c.high = c.left.and(c.all()), c.high && c.leftHi
	}
}

// char takes a character.
func (c *classReader) char(r rune) error {
	if c.state == atRange {
		if c.last > r {
			return fmt.Errorf("the range %c-%c in a class: expected the smaller character first", c.last, r)
		}
		c.add(set{c.last, r})
		c.state = complete
		return nil
	}
	c.flush()
	c.state, c.last, c.isSet = atValue, r, false
	return nil
}

// item takes a token and returns the next one.
func (c *classReader) item(tok classToken) (classToken, error) {
	switch tok.kind {
	case charItem:
		if err := c.char(tok.r); err != nil {
			return tok, err
		}
	case setItem:
		if c.state == atRange {
			return tok, errors.New("a range in a class that ends in a set")
		}
		c.flush()
		c.add(tok.set)
		c.state, c.isSet = atValue, true
	case rangeItem:
		return c.dash()
	case openItem:
		c.flush()
		c.state = complete
		inner, negative, err := c.p.bracket()
		if err != nil {
			return tok, err
		}
		s := inner.all()
		if negative {
			s = s.not()
		}
		c.add(s)
		c.high = c.high || inner.high != negative
	case andItem:
		c.and()
		c.left, c.leftHi, c.hasAnd = c.all(), c.high, true
		c.parts, c.high, c.state = nil, false, atStart
	}
	return c.p.classToken()
}

// dash takes a -, which makes a range or stands for itself.
func (c *classReader) dash() (classToken, error) {
	if c.state == atRange { // [!--]
		if err := c.char('-'); err != nil {
			return classToken{}, err
		}
		return c.p.classToken()
	}
	tok, err := c.p.classToken()
	if err != nil {
		return tok, err
	}
	if c.state == atValue && tok.kind != closeItem && tok.kind != andItem {
		if c.isSet {
			return tok, errors.New("a range in a class that begins with a set")
		}
		c.state = atRange
		return tok, nil
	}
	return tok, c.char('-')
}

// classToken reads a token in a class.
func (p *parser) classToken() (classToken, error) {
	if p.done() {
		return classToken{}, errors.New("a class without its ]")
	}
	r := p.src[p.at]
	p.at++
	switch {
	case r == ']':
		return classToken{kind: closeItem, r: r}, nil
	case r == '-':
		return classToken{kind: rangeItem, r: r}, nil
	case r == '\\':
		return p.classEscape()
	case r == '[' && p.peek() == ':' && p.posixFollows():
		s, err := p.posix()
		return classToken{kind: setItem, set: s}, err
	case r == '[':
		return classToken{kind: openItem}, nil
	case r == '&' && p.take('&'):
		return classToken{kind: andItem}, nil
	}
	return classToken{r: r}, nil
}

func (p *parser) classEscape() (classToken, error) {
	if p.done() {
		return classToken{}, errors.New(`a \ at the end`)
	}
	r := p.src[p.at]
	p.at++
	if property, not, ok := typeOf(r); ok {
		return classToken{kind: setItem, set: p.property(property, not)}, nil
	}
	if (r == 'p' || r == 'P') && p.peek() == '{' {
		property, not, err := p.namedProperty(r == 'P')
		return classToken{kind: setItem, set: p.property(property, not)}, err
	}
	r, _, err := p.character(r)
	return classToken{r: r, escaped: true}, err
}

// posixFollows reports whether [ begins [:name:], with any name.
func (p *parser) posixFollows() bool {
	alpha := unicodeTables().ranges[alphaProperty]
	for i := p.at + 1; i < len(p.src); i++ {
		switch r := p.src[i]; {
		case r == ':':
			return i+1 < len(p.src) && p.src[i+1] == ']' && i > p.at+1
		case r == '^' && i == p.at+1:
		case !alpha.has(r):
			return false
		}
	}
	return false
}

// posix reads :name:] or :^name:].
func (p *parser) posix() (set, error) {
	p.at++
	not := p.take('^')
	length := slices.Index(p.src[p.at:], ':')
	name := string(p.src[p.at : p.at+length])
	property, ok := posixNames[name]
	if !ok {
		return nil, fmt.Errorf("the class [:%s:], which Oniguruma does not have", name)
	}
	p.at += length + 2
	return p.property(property, not), nil
}
