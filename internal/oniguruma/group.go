package oniguruma

import (
	"errors"
	"fmt"
	"slices"
)

// bag is the group or option that a parenthesis opens.
type bag uint8

const (
	otherBag       bag = iota
	plainGroup         // (?:…)
	isolatedOption     // (?i), which holds up to the end of the group
)

// group reads a group after its parenthesis, up to and with the closing one.
func (p *parser) group() (*node, bag, error) {
	if p.done() {
		return nil, otherBag, errors.New("a group without its )")
	}
	if p.peek() == '*' {
		return nil, otherBag, errors.New("a callout, (*…), which is not supported")
	}
	if !p.take('?') {
		p.groups++
		n := &node{kind: groupNode, group: p.groups}
		return p.body(n)
	}
	if p.done() {
		return nil, otherBag, errors.New("a group without its )")
	}
	r := p.src[p.at]
	p.at++
	switch r {
	case ':':
		n, err := p.inner()
		return n, plainGroup, err
	case '=', '!':
		return p.body(&node{kind: lookNode, negative: r == '!'})
	case '>':
		return p.body(&node{kind: atomicNode})
	case '\'':
		return p.named('\'')
	case '<':
		if p.take('=') {
			return p.body(&node{kind: lookNode, behind: true})
		}
		if p.take('!') {
			return p.body(&node{kind: lookNode, behind: true, negative: true})
		}
		return p.named('>')
	case '~':
		return nil, otherBag, errors.New("an absent operator, (?~…), which is not supported")
	case '{':
		return nil, otherBag, errors.New("a callout, (?{…}), which is not supported")
	case '(':
		return nil, otherBag, errors.New("a conditional, (?(…)…), which is not supported")
	case 'C', 'I', 'L':
		return nil, otherBag, fmt.Errorf("the option (?%c) of a whole pattern, which is not supported", r)
	}
	p.at--
	return p.option()
}

// inner reads the alternatives of a group.
func (p *parser) inner() (*node, error) {
	if err := p.next(); err != nil {
		return nil, err
	}
	return p.alternatives(closeToken)
}

func (p *parser) body(n *node) (*node, bag, error) {
	var err error
	if n.body, err = p.inner(); err == nil && n.behind {
		err = checkBehind(n.body, n.negative)
	}
	return n, otherBag, err
}

// checkBehind refuses what Oniguruma does in a look-behind.
func checkBehind(n *node, negative bool) error {
	switch {
	case n.kind == lookNode && (!n.behind || n.negative && !negative):
		return errors.New("a look-ahead or a negative look-behind in a look-behind")
	case n.kind == anchorNode && (n.anchor == textEnd || n.anchor == textEndOrNewline):
		return errors.New("the end of the text in a look-behind")
	case n.kind == groupNode && negative:
		return errors.New("a captured group in a negative look-behind")
	case n.kind == keepNode, n.kind == backNode:
		return errors.New(`\K or a back reference in a look-behind, which is not supported`)
	}
	if n.body != nil {
		return checkBehind(n.body, negative)
	}
	for _, sub := range n.nodes {
		if err := checkBehind(sub, negative); err != nil {
			return err
		}
	}
	return nil
}

// name reads a name up to its end.
func (p *parser) name(end rune) (string, error) {
	var name []rune
	for !p.done() && p.src[p.at] != end && p.src[p.at] != ')' {
		name = append(name, p.src[p.at])
		p.at++
	}
	if len(name) == 0 || !p.take(end) {
		return "", errors.New("a name without its end")
	}
	for i, r := range name {
		if !unicodeTables().ranges[wordProperty].has(r) || i == 0 && r >= '0' && r <= '9' {
			return "", fmt.Errorf("the name %q: expected a word", string(name))
		}
	}
	return string(name), nil
}

func (p *parser) named(end rune) (*node, bag, error) {
	name, err := p.name(end)
	if err != nil {
		return nil, otherBag, err
	}
	p.groups++
	p.names[name] = append(p.names[name], p.groups)
	return p.body(&node{kind: groupNode, group: p.groups})
}

// option reads the letters of (?i) or (?i:…).
func (p *parser) option() (*node, bag, error) {
	o, on := p.current, true
	for {
		if p.done() {
			return nil, otherBag, errors.New("a group without its )")
		}
		r := p.src[p.at]
		p.at++
		switch r {
		case '-':
			on = false
		case 'i':
			o.ignoreCase = on
		case 'm':
			o.dotAll = on
		case 'x':
			o.extended = on
		case 'W':
			o.asciiWord = on
		case 'D':
			o.asciiDigit = on
		case 'S':
			o.asciiSpace = on
		case 'P':
			o.asciiPosix = on
		case ')':
			p.current = o
			return nil, isolatedOption, nil
		case ':':
			saved := p.current
			p.current = o
			body, err := p.inner()
			p.current = saved
			return &node{kind: optionNode, body: body}, otherBag, err
		default:
			return nil, otherBag, fmt.Errorf("the option (?%c), which is not supported", r)
		}
	}
}

// numberedBack reads \1. ok is false if the number is no reference but the number of a character.
func (p *parser) numberedBack() (ok bool, err error) {
	from := p.at
	p.at--
	n, _, err := p.count()
	if err != nil || n > p.groups && n > 9 {
		p.at = from
		return false, nil
	}
	p.byNum = true
	return true, p.back([]int{n})
}

// namedBack reads \k<name> and \k<number>.
func (p *parser) namedBack() error {
	end := rune('>')
	if p.src[p.at] == '\'' {
		end = '\''
	}
	p.at++
	if r := p.peek(); r == '-' || r == '+' || r >= '0' && r <= '9' {
		n, _, err := p.count()
		if err != nil || !p.take(end) {
			return errors.New("a relative back reference or one with a level, which is not supported")
		}
		p.byNum = true
		return p.back([]int{n})
	}
	name, err := p.name(end)
	if err != nil {
		return err
	}
	groups, ok := p.names[name]
	if !ok {
		return fmt.Errorf("a back reference to %q, which no group before it has as its name", name)
	}
	return p.back(groups)
}

func (p *parser) back(groups []int) error {
	if p.current.ignoreCase {
		return errors.New("a back reference that ignores case, which is not supported")
	}
	p.maxBack = max(p.maxBack, slices.Max(groups))
	p.tok = token{kind: nodeToken, node: &node{kind: backNode, backs: groups}}
	return nil
}
