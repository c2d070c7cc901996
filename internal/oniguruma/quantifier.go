package oniguruma

import (
	"errors"
	"slices"
)

// quantifier says how often something is repeated.
type quantifier struct {
	min, max   int
	lazy       bool
	possessive bool
}

// maxRepeat is the largest number of an interval.
const maxRepeat = 100000

// repeat reads the rest of *, + or ?.
func (p *parser) repeat(r rune) {
	q := quantifier{max: unlimited}
	switch r {
	case '+':
		q.min = 1
	case '?':
		q.max = 1
	}
	if p.take('?') {
		q.lazy = true
	} else {
		q.possessive = p.take('+')
	}
	p.tok = token{kind: repeatToken, quantifier: q}
}

// interval reads {n,m} after its brace. Without this form the brace is a text.
func (p *parser) interval() error {
	from := p.at
	least, digits, err := p.count()
	if err != nil {
		return err
	}
	q := quantifier{min: least, max: least}
	fixed := true
	ok := digits
	if p.take(',') {
		fixed = false
		most, has, err := p.count()
		switch {
		case err != nil:
			return err
		case has:
			q.max, ok = most, true
		default:
			q.max = unlimited // {,} stays a text
		}
	}
	if !ok || !p.take('}') {
		p.at = from
		return nil
	}
	if q.max != unlimited && q.min > q.max { // {3,1} is Oniguruma's way to write a possessive {1,3}
		q.min, q.max, q.possessive = q.max, q.min, true
	}
	if !fixed && !q.possessive {
		q.lazy = p.take('?')
	}
	p.tok = token{kind: repeatToken, quantifier: q}
	return nil
}

func (p *parser) count() (n int, digits bool, err error) {
	for ; !p.done() && p.src[p.at] >= '0' && p.src[p.at] <= '9'; p.at++ {
		if n, digits = n*10+int(p.src[p.at]-'0'), true; n > maxRepeat {
			return 0, true, errors.New("a quantifier above 100000")
		}
	}
	return n, digits, nil
}

// quantifiers reads the quantifiers of n. A text of several characters gives its last one to them, unless it is a
// group.
func (p *parser) quantifiers(n *node, group bool) (*node, error) {
	var before *node
	for p.tok.kind == repeatToken {
		if !repeatable(n) {
			return nil, errors.New("a quantifier of an anchor")
		}
		q := p.tok.quantifier
		if n.kind == textNode && !group && len(n.text) > 1 && !(q.min == 1 && q.max == 1) {
			last := len(n.text) - 1
			before = &node{kind: textNode, text: n.text[:last:last], fold: n.fold}
			n = &node{kind: textNode, text: n.text[last:], fold: n.fold}
		}
		n = q.apply(n)
		group = false
		if err := p.next(); err != nil {
			return nil, err
		}
	}
	if before != nil {
		return list(before, n), nil
	}
	return n, nil
}

func repeatable(n *node) bool {
	switch n.kind {
	case anchorNode, lookNode, keepNode:
		return false
	case altNode:
		return !slices.ContainsFunc(n.nodes, func(sub *node) bool { return !repeatable(sub) })
	}
	return true
}

// apply returns n repeated.
func (q quantifier) apply(n *node) *node {
	if q.min == 1 && q.max == 1 {
		return n
	}
	out := &node{kind: repeatNode, body: n, min: q.min, max: q.max, lazy: q.lazy}
	if n.kind == repeatNode {
		out = out.reduced()
	}
	if q.possessive {
		return &node{kind: atomicNode, body: out}
	}
	return out
}

// reduction says which repetition equals a repetition of a repetition.
type reduction uint8

const (
	keepInner reduction = iota
	toStar
	toLazyStar
	toPlus
	toLazyOptional
	toLazyOptionalOfPlus // (?:x+)??
	asIs
)

// reductions is Oniguruma's table: the row is the inner quantifier, the column the outer one, as number counts them.
var reductions = [6][6]reduction{
	{keepInner, toStar, toStar, toLazyOptional, toLazyStar, asIs},
	{keepInner, keepInner, keepInner, toLazyOptionalOfPlus, toLazyOptionalOfPlus, keepInner},
	{toStar, toStar, keepInner, asIs, toLazyOptionalOfPlus, keepInner},
	{keepInner, toLazyStar, toLazyStar, keepInner, toLazyStar, toLazyStar},
	{keepInner, keepInner, keepInner, keepInner, keepInner, keepInner},
	{asIs, toStar, toPlus, toLazyStar, toLazyStar, keepInner},
}

// number is the row or column of ?, *, +, ??, *? and +?; -1 for other quantifiers.
func (n *node) number() int {
	lazy := 0
	if n.lazy {
		lazy = 3
	}
	switch {
	case n.min == 0 && n.max == 1:
		return lazy
	case n.min == 0 && n.max == unlimited:
		return lazy + 1
	case n.min == 1 && n.max == unlimited:
		return lazy + 2
	}
	return -1
}

// reduced returns the repetition n of a repetition as Oniguruma changes it.
func (n *node) reduced() *node {
	inner, outer := n.body.number(), n.number()
	if inner >= 0 && outer < 0 {
		if (inner == 1 || inner == 2) && n.max != unlimited && n.max > 1 && !n.lazy {
			n.max = max(n.min, 1)
		}
		return n
	}
	if inner < 0 || outer < 0 {
		if n.min == n.max && n.body.min == n.body.max {
			n.min *= n.body.min
			n.max, n.body = n.min, n.body.body
		}
		return n
	}
	star := node{kind: repeatNode, body: n.body.body, max: unlimited}
	switch reductions[inner][outer] {
	case keepInner:
		return n.body
	case toStar:
		return &star
	case toLazyStar:
		star.lazy = true
		return &star
	case toPlus:
		star.min = 1
		return &star
	case toLazyOptional:
		star.max, star.lazy = 1, true
		return &star
	case toLazyOptionalOfPlus:
		star.min = 1
		return &node{kind: repeatNode, body: &star, max: 1, lazy: true}
	}
	return n
}
