package oniguruma

import (
	"fmt"
)

type opcode uint8

const (
	opText      opcode = iota // text
	opClass                   // one character of class
	opAny                     // one character
	opLoop                    // min to max characters of class
	opSplit                   // go on; if that fails, at x. With first: at x at once if the next byte is not of it
	opSplitLazy               // go on at x; if that fails, here
	opJump                    // to x
	opSave                    // the place, in slot x
	opLoopStart               // the place, in slot x
	opLoopEnd                 // to y if the place is that in slot x
	opAnchor
	opBack
	opKeep
	opPeek   // whether a character of class follows; negative: whether none does
	opAhead  // run what follows up to opEnd, then go on at x
	opBehind // the same, so that it ends here
	opAtomic
	opEnd
)

// instruction is a step of a program.
type instruction struct {
	op         opcode
	x, y       int
	text       string
	class      *class
	first      *byteSet
	min, max   int
	lazy       bool
	possessive bool
	negative   bool
	anchor     anchor
	word       *class
	backs      []int
}

// maxProgram bounds the instructions of a pattern: a repeated group is written out.
const maxProgram = 200000

type compiler struct {
	program []instruction
	slots   int
	classes map[*node]*class
	err     error
}

// compile makes the program of a tree.
func compile(tree *node, groups int) (*Regexp, error) {
	tree = tree.prepare(false)
	c := compiler{slots: 2 * (groups + 1), classes: map[*node]*class{}}
	c.node(tree)
	c.emit(instruction{op: opEnd})
	if c.err != nil {
		return nil, c.err
	}
	if len(c.program) >= maxProgram {
		return nil, fmt.Errorf("quantifiers of groups that make more than %d steps", maxProgram)
	}
	re := &Regexp{program: c.program, slots: c.slots}
	var first byteSet
	if !tree.first(&first) {
		re.first = &first
	}
	return re, nil
}

func (c *compiler) emit(i instruction) int {
	if len(c.program) < maxProgram {
		c.program = append(c.program, i)
		return len(c.program) - 1
	}
	return 0 // compile refuses the pattern
}

func (c *compiler) here() int { return len(c.program) }

// land makes an instruction jump to the place.
func (c *compiler) land(at int) { c.program[at].x = c.here() }

func (c *compiler) class(n *node) *class {
	if c.classes[n] == nil {
		c.classes[n] = newClass(n.set)
	}
	return c.classes[n]
}

func (c *compiler) node(n *node) {
	switch n.kind {
	case textNode:
		if len(n.text) > 0 {
			c.emit(instruction{op: opText, text: string(n.text)})
		}
	case setNode:
		c.emit(instruction{op: opClass, class: c.class(n)})
	case anyNode:
		c.emit(instruction{op: opAny})
	case listNode:
		for _, sub := range n.nodes {
			c.node(sub)
		}
	case altNode:
		c.alternatives(n.nodes)
	case repeatNode:
		c.repeat(n)
	case groupNode:
		c.emit(instruction{op: opSave, x: 2 * n.group})
		c.node(n.body)
		c.emit(instruction{op: opSave, x: 2*n.group + 1})
	case optionNode:
		c.node(n.body)
	case atomicNode:
		c.atomic(n)
	case lookNode:
		c.look(n)
	case anchorNode:
		c.emit(instruction{op: opAnchor, anchor: n.anchor, word: n.word})
	case backNode:
		c.emit(instruction{op: opBack, backs: n.backs})
	case keepNode:
		c.emit(instruction{op: opKeep})
	}
}

// firstOf is the bytes that a node can begin with; nil if it can be empty.
func firstOf(n *node) *byteSet {
	var b byteSet
	if n.first(&b) {
		return nil
	}
	return &b
}

func (c *compiler) alternatives(nodes []*node) {
	var ends []int
	for i, n := range nodes {
		if i == len(nodes)-1 {
			c.node(n)
			break
		}
		split := c.emit(instruction{op: opSplit, first: firstOf(n)})
		c.node(n)
		ends = append(ends, c.emit(instruction{op: opJump}))
		c.land(split)
	}
	for _, at := range ends {
		c.land(at)
	}
}

// single returns the set of a node that matches one character; nil for others.
func (n *node) single() *node {
	switch n.kind {
	case setNode:
		return n
	case anyNode:
		return &node{kind: setNode, set: set(nil).not()}
	case optionNode:
		return n.body.single()
	case textNode:
		if len(n.text) == 1 {
			return &node{kind: setNode, set: set{n.text[0], n.text[0]}}
		}
	case listNode:
		if len(n.nodes) == 1 {
			return n.nodes[0].single()
		}
	}
	return nil
}

// counts spells the numbers of a quantifier.
func (n *node) counts() string {
	switch n.max {
	case n.min:
		return fmt.Sprintf("{%d}", n.min)
	case unlimited:
		return fmt.Sprintf("{%d,}", n.min)
	}
	return fmt.Sprintf("{%d,%d}", n.min, n.max)
}

func (c *compiler) repeat(n *node) {
	if one := n.body.single(); one != nil {
		c.emit(instruction{op: opLoop, class: c.class(one), min: n.min, max: n.max, lazy: n.lazy})
		return
	}
	if least, _ := n.body.width(); least == 0 && (n.max > 1 || n.min > 1) {
		// Whether Oniguruma ends the loop at an empty repetition depends on the size of the body.
		c.err = fmt.Errorf("the quantifier %s of a group that can match nothing: expected one of at least one character, or *, + or ?",
			n.counts())
	}
	for range n.min {
		if c.here() >= maxProgram {
			return
		}
		c.node(n.body)
	}
	if n.max == unlimited {
		c.star(n)
		return
	}
	var splits []int
	for range n.max - n.min {
		if c.here() >= maxProgram {
			return
		}
		splits = append(splits, c.split(n))
		c.node(n.body)
	}
	for _, at := range splits {
		c.land(at)
	}
}

func (c *compiler) split(n *node) int {
	if n.lazy {
		return c.emit(instruction{op: opSplitLazy})
	}
	return c.emit(instruction{op: opSplit, first: firstOf(n.body)})
}

// star repeats a body without limit. A repetition that matches nothing is the last one.
func (c *compiler) star(n *node) {
	least, _ := n.body.width()
	start := c.split(n)
	slot := -1
	if least == 0 {
		slot = c.slots
		c.slots++
		c.emit(instruction{op: opLoopStart, x: slot})
	}
	c.node(n.body)
	if slot >= 0 {
		c.emit(instruction{op: opLoopEnd, x: slot, y: c.here() + 2})
	}
	c.emit(instruction{op: opJump, x: start})
	c.land(start)
}

func (c *compiler) atomic(n *node) {
	if r := n.body; r.kind == repeatNode && !r.lazy {
		if one := r.body.single(); one != nil {
			c.emit(instruction{op: opLoop, class: c.class(one), min: r.min, max: r.max, possessive: true})
			return
		}
	}
	c.sub(instruction{op: opAtomic}, n.body)
}

func (c *compiler) look(n *node) {
	if one := n.body.single(); one != nil && !n.behind {
		c.emit(instruction{op: opPeek, class: c.class(one), negative: n.negative})
		return
	}
	i := instruction{op: opAhead, negative: n.negative}
	if n.behind {
		i.op = opBehind
		i.min, i.max = n.body.width()
	}
	c.sub(i, n.body)
}

// sub compiles a body that runs on its own.
func (c *compiler) sub(i instruction, body *node) {
	at := c.emit(i)
	c.node(body)
	c.emit(instruction{op: opEnd})
	c.land(at)
}

// first adds the bytes that a match of the node can begin with, and reports whether it can be empty.
func (n *node) first(b *byteSet) (empty bool) {
	switch n.kind {
	case textNode:
		if len(n.text) == 0 {
			return true
		}
		set{n.text[0], n.text[0]}.firstBytes(b)
	case setNode:
		n.set.firstBytes(b)
	case anyNode:
		set(nil).not().firstBytes(b)
	case listNode:
		for _, sub := range n.nodes {
			if !sub.first(b) {
				return false
			}
		}
		return true
	case altNode:
		for _, sub := range n.nodes {
			if sub.first(b) {
				empty = true
			}
		}
		return empty
	case repeatNode:
		if n.max == 0 {
			return true
		}
		return n.body.first(b) || n.min == 0
	case groupNode, optionNode, atomicNode:
		return n.body.first(b)
	default:
		return true
	}
	return false
}
