package oniguruma

// kind is what a node matches.
type kind uint8

const (
	textNode   kind = iota // text; the empty text matches everywhere
	setNode                // one character of set
	anyNode                // one character
	listNode               // nodes one after the other
	altNode                // the first node that matches
	repeatNode             // body, min to max times
	groupNode              // body, captured
	optionNode             // body, which has other options
	atomicNode             // body, without backtracking into it
	lookNode               // body, ahead of a place or behind it
	anchorNode             // a place
	backNode               // the text of a group
	keepNode               // \K: the match begins here
)

// node is a part of a pattern.
type node struct {
	kind kind

	text []rune
	fold bool // textNode: ignore case

	set set

	nodes []*node

	body     *node
	min, max int // max is unlimited for none
	lazy     bool
	group    int
	behind   bool // lookNode
	negative bool // lookNode
	anchor   anchor
	word     *class // anchorNode: what words are of
	backs    []int
}

const unlimited = -1

// anchor is a kind of place.
type anchor uint8

const (
	lineStart anchor = iota
	lineEnd
	textStart
	textEnd
	textEndOrNewline // \Z
	searchStart      // \G
	wordBoundary
	notWordBoundary
	segmentBoundary // \y
	notSegmentBoundary
)

func empty() *node { return &node{kind: textNode} }

func list(nodes ...*node) *node { return &node{kind: listNode, nodes: nodes} }

// width returns the least and the largest number of characters that a node matches.
func (n *node) width() (least, most int) {
	switch n.kind {
	case textNode:
		return len(n.text), len(n.text)
	case setNode, anyNode:
		return 1, 1
	case listNode:
		for _, sub := range n.nodes {
			a, b := sub.width()
			least, most = least+a, addLimit(most, b)
		}
		return least, most
	case altNode:
		least, most = n.nodes[0].width()
		for _, sub := range n.nodes[1:] {
			a, b := sub.width()
			least = min(least, a)
			if most != unlimited && b != unlimited {
				most = max(most, b)
			} else {
				most = unlimited
			}
		}
		return least, most
	case repeatNode:
		a, b := n.body.width()
		least, most = a*n.min, b*n.max
		if (b == unlimited || n.max == unlimited) && b != 0 && n.max != 0 {
			most = unlimited
		}
		return least, most
	case groupNode, optionNode, atomicNode:
		return n.body.width()
	case backNode:
		return 0, unlimited
	}
	return 0, 0
}

func addLimit(a, b int) int {
	if a == unlimited || b == unlimited {
		return unlimited
	}
	return a + b
}
