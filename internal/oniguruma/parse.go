package oniguruma

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// options are what (?i) and the like set.
type options struct {
	ignoreCase, dotAll, extended                  bool
	asciiWord, asciiDigit, asciiSpace, asciiPosix bool
}

// parser reads a pattern. It has one token of look-ahead, as Oniguruma's parser does.
type parser struct {
	src     []rune
	at      int
	tok     token
	current options
	groups  int
	names   map[string][]int // numbers of the groups of a name
	maxBack int              // the largest group that a back reference names
	byNum   bool             // a back reference by number was read
	depth   int
}

// maxDepth bounds groups within groups. Oniguruma allows 4096.
const maxDepth = 1000

type tokenKind uint8

const (
	endToken    tokenKind = iota
	textToken             // a character of a text
	codeToken             // a character written as a number, which is a text of its own
	nodeToken             // what makes a node without more reading
	setToken              // the start of a class
	repeatToken           // a quantifier
	altToken
	openToken
	closeToken
)

// token is what the parser reads next.
type token struct {
	kind tokenKind
	r    rune
	node *node
	quantifier
}

func (p *parser) done() bool { return p.at >= len(p.src) }

// peek is the next character; -1 at the end.
func (p *parser) peek() rune {
	if p.done() {
		return -1
	}
	return p.src[p.at]
}

// take reads the next character if it is r.
func (p *parser) take(r rune) bool {
	if p.peek() != r {
		return false
	}
	p.at++
	return true
}

func (p *parser) parse() (*node, error) {
	if err := p.next(); err != nil {
		return nil, err
	}
	tree, err := p.alternatives(endToken)
	switch {
	case err != nil:
	case len(p.names) > 0 && p.byNum:
		err = errors.New("a back reference by number in a pattern with named groups")
	case p.maxBack > p.groups:
		err = fmt.Errorf("a back reference to group %d of %d", p.maxBack, p.groups)
	}
	return tree, err
}

// alternatives reads up to the token term.
func (p *parser) alternatives(term tokenKind) (*node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("groups nested more than %d deep", maxDepth)
	}
	saved := p.current
	first, err := p.branch(term)
	if err != nil {
		return nil, err
	}
	all := []*node{first}
	for p.tok.kind == altToken {
		if err := p.next(); err != nil {
			return nil, err
		}
		n, err := p.branch(term)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	if p.tok.kind != term {
		return nil, errors.New("a group without its )")
	}
	p.current = saved
	p.depth--
	if len(all) == 1 {
		return first, nil
	}
	return &node{kind: altNode, nodes: all}, nil
}

// branch reads up to | or the token term.
func (p *parser) branch(term tokenKind) (*node, error) {
	ends := func() bool { return p.tok.kind == endToken || p.tok.kind == term || p.tok.kind == altToken }
	first, err := p.expression(term)
	if err != nil || ends() {
		return first, err
	}
	out := list(first)
	for !ends() {
		n, err := p.expression(term)
		if err != nil {
			return nil, err
		}
		if n.kind == listNode {
			out.nodes = append(out.nodes, n.nodes...)
		} else {
			out.nodes = append(out.nodes, n)
		}
	}
	return out, nil
}

// expression reads an item with its quantifiers.
func (p *parser) expression(term tokenKind) (*node, error) {
	if k := p.tok.kind; k == term || k == altToken || k == endToken {
		return empty(), nil
	}
	group := false // a group without a capture
	var n *node
	var err error
	switch p.tok.kind {
	case openToken:
		var how bag
		if n, how, err = p.group(); err != nil {
			return nil, err
		}
		if how == isolatedOption {
			return p.isolated(term)
		}
		group = how == plainGroup
		err = p.next()
	case closeToken:
		return nil, errors.New("a ) without its group")
	case textToken:
		n = &node{kind: textNode, fold: p.current.ignoreCase}
		for err == nil && p.tok.kind == textToken {
			n.text = append(n.text, p.tok.r)
			err = p.next()
		}
	case codeToken:
		n = &node{kind: textNode, text: []rune{p.tok.r}, fold: p.current.ignoreCase}
		err = p.next()
	case nodeToken:
		n = p.tok.node
		err = p.next()
	case setToken:
		if n, err = p.class(); err == nil {
			err = p.next()
		}
	case repeatToken:
		return nil, errors.New("a quantifier without what it repeats")
	}
	if err != nil {
		return nil, err
	}
	return p.quantifiers(n, group)
}

// isolated reads what follows (?i) up to the end of its group, alternatives included.
func (p *parser) isolated(term tokenKind) (*node, error) {
	if err := p.next(); err != nil {
		return nil, err
	}
	body, err := p.alternatives(term)
	if err != nil {
		return nil, err
	}
	return &node{kind: optionNode, body: body}, nil
}

// next reads a token.
func (p *parser) next() error {
	for {
		p.tok = token{kind: endToken}
		if p.done() {
			return nil
		}
		r := p.src[p.at]
		p.at++
		switch {
		case r == '\\':
			return p.escape()
		case r == '(' && p.peek() == '?' && p.at+1 < len(p.src) && p.src[p.at+1] == '#':
			if err := p.comment(); err != nil {
				return err
			}
			continue
		case p.current.extended && r == '#':
			for !p.done() && p.src[p.at] != '\n' {
				p.at++
			}
			p.at = min(p.at+1, len(p.src))
			continue
		case p.current.extended && (r == ' ' || r == '\t' || r == '\n' || r == '\r' || r == '\f'):
			continue
		}
		return p.meta(r)
	}
}

// comment skips (?#…).
func (p *parser) comment() error {
	for p.at += 2; !p.done(); p.at++ {
		switch p.src[p.at] {
		case '\\':
			p.at++
		case ')':
			p.at++
			return nil
		}
	}
	return errors.New("a comment without its )")
}

// meta reads the token of a character that is not escaped.
func (p *parser) meta(r rune) error {
	p.tok = token{kind: textToken, r: r}
	switch r {
	case '.':
		n := &node{kind: anyNode}
		if !p.current.dotAll {
			n = notNewline()
		}
		p.tok = token{kind: nodeToken, node: n}
	case '^':
		p.anchor(lineStart)
	case '$':
		p.anchor(lineEnd)
	case '[':
		p.tok.kind = setToken
	case '|':
		p.tok.kind = altToken
	case '(':
		p.tok.kind = openToken
	case ')':
		p.tok.kind = closeToken
	case '*', '+', '?':
		p.repeat(r)
	case '{':
		return p.interval()
	}
	return nil
}

func notNewline() *node { return &node{kind: setNode, set: setOf('\n', '\n').not()} }

func (p *parser) anchor(a anchor) {
	n := &node{kind: anchorNode, anchor: a}
	if a == wordBoundary || a == notWordBoundary {
		n.word = newClass(p.outside(wordProperty, false))
	}
	p.tok = token{kind: nodeToken, node: n}
}

// anchors are the escapes of places.
var anchors = map[rune]anchor{'b': wordBoundary, 'B': notWordBoundary, 'A': textStart, 'Z': textEndOrNewline, 'z': textEnd,
	'G': searchStart, 'y': segmentBoundary, 'Y': notSegmentBoundary, '`': textStart, '\'': textEnd}

// escape reads the token of an escape outside of a class.
func (p *parser) escape() error {
	if p.done() {
		return errors.New(`a \ at the end`)
	}
	r := p.src[p.at]
	p.at++
	item := func(n *node) error {
		p.tok = token{kind: nodeToken, node: n}
		return nil
	}
	if a, ok := anchors[r]; ok {
		p.anchor(a)
		return nil
	}
	if property, not, ok := typeOf(r); ok {
		return item(&node{kind: setNode, set: p.outside(property, not)})
	}
	switch {
	case r == 'K':
		return item(&node{kind: keepNode})
	case r == 'R':
		return item(generalNewline())
	case r == 'N':
		return item(notNewline())
	case r == 'O':
		return item(&node{kind: anyNode})
	case r == 'X':
		return item(graphemeCluster())
	case (r == 'p' || r == 'P') && p.peek() == '{':
		property, not, err := p.namedProperty(r == 'P')
		if err != nil {
			return err
		}
		return item(&node{kind: setNode, set: p.outside(property, not)})
	case r == 'k' && (p.peek() == '<' || p.peek() == '\''):
		return p.namedBack()
	case r == 'g' && (p.peek() == '<' || p.peek() == '\''):
		return errors.New(`a call of a group, \g, which is not supported`)
	case r >= '1' && r <= '9':
		if ok, err := p.numberedBack(); ok || err != nil {
			return err
		}
	}
	code, isCode, err := p.character(r)
	p.tok = token{kind: textToken, r: code}
	if isCode {
		p.tok.kind = codeToken
	}
	return err
}

// generalNewline is \R.
func generalNewline() *node {
	pair := &node{kind: textNode, text: []rune("\r\n")}
	single := &node{kind: setNode, set: setOf('\n', '\r', 0x85, 0x85, 0x2028, 0x2029)}
	return &node{kind: atomicNode, body: &node{kind: altNode, nodes: []*node{pair, single}}}
}

// graphemeCluster is \X, which is (?>\O(?:\Y\O)*).
func graphemeCluster() *node {
	more := list(&node{kind: anchorNode, anchor: notSegmentBoundary}, &node{kind: anyNode})
	return &node{kind: atomicNode, body: list(&node{kind: anyNode}, &node{kind: repeatNode, body: more, max: unlimited})}
}

// typeOf is the property of \w, \d, \s and \h, and of their opposites.
func typeOf(r rune) (property int, not, ok bool) {
	switch r {
	case 'w', 'W':
		return wordProperty, r == 'W', true
	case 'd', 'D':
		return digitProperty, r == 'D', true
	case 's', 'S':
		return spaceProperty, r == 'S', true
	case 'h', 'H':
		return xdigitProperty, r == 'H', true
	}
	return 0, false, false
}

// property is the set of a property under the options of the place.
func (p *parser) property(property int, not bool) set {
	s, o := unicodeTables().ranges[property], p.current
	if o.asciiPosix && property < asciiProperty || o.asciiWord && property == wordProperty ||
		o.asciiDigit && property == digitProperty || o.asciiSpace && property == spaceProperty {
		s = s.and(set{0, utf8.RuneSelf - 1})
	}
	if not {
		return s.not()
	}
	return s
}

// numberWords are no words in a class, but Oniguruma's table of Latin-1, which it asks outside of classes, has them.
var numberWords = setOf('²', '³', '¹', '¹', '¼', '¾')

// outside is the set of a property outside of a class.
func (p *parser) outside(property int, not bool) set {
	s := p.property(property, false)
	if property == wordProperty && !p.current.asciiWord && !p.current.asciiPosix {
		s = s.or(numberWords)
	}
	if not {
		return s.not()
	}
	return s
}

// namedProperty reads {name} or {^name}.
func (p *parser) namedProperty(negative bool) (property int, not bool, err error) {
	p.at++
	if p.take('^') {
		negative = !negative
	}
	var name []rune
	for {
		if p.done() {
			return 0, false, errors.New("a property without its }")
		}
		r := p.src[p.at]
		p.at++
		switch r {
		case '}':
			index, ok := unicodeTables().names[lowerASCII(name)]
			if !ok {
				return 0, false, fmt.Errorf("the property %q, which Oniguruma does not have", string(name))
			}
			return index, negative, nil
		case '(', ')', '{', '|':
			return 0, false, errors.New("a property without its }")
		case ' ', '-', '_':
		default:
			name = append(name, r)
		}
	}
}

func lowerASCII(name []rune) string {
	out := make([]rune, len(name))
	for i, r := range name {
		if out[i] = r; r >= 'A' && r <= 'Z' {
			out[i] += 'a' - 'A'
		}
	}
	return string(out)
}
