package oniguruma

import "slices"

// foldSet adds the characters that are equal but for case, and returns the texts of several characters that are. The
// set of a class with ^ is folded before it is negated, and has no such texts.
func (t *tables) foldSet(s set, negative bool) (set, []*node) {
	var texts []*node
	for _, f := range t.foldings {
		members := f.from
		if len(f.to) == 1 {
			members = append(slices.Clone(f.from), f.to[0])
		}
		if !slices.ContainsFunc(members, s.has) {
			continue
		}
		for _, r := range members {
			if !s.has(r) {
				s = s.or(set{r, r})
			}
		}
		if len(f.to) > 1 && !negative {
			sequence := list()
			for _, r := range f.to {
				sequence.nodes = append(sequence.nodes, t.oneOf(append([]rune{r}, t.single[r]...)))
			}
			texts = append(texts, sequence)
		}
	}
	return s, texts
}

// oneOf is a node for one of some characters.
func (t *tables) oneOf(list []rune) *node {
	var s set
	for _, r := range list {
		s = append(s, r, r)
	}
	return &node{kind: setNode, set: setOf(s...)}
}

// folded returns a node for a text whose case is ignored. In a look-behind no character stands for several.
func (t *tables) folded(text []rune, behind bool) *node {
	out := list()
	for at := 0; at < len(text); {
		n, sub := t.foldedAt(text[at:], behind)
		out.nodes = append(out.nodes, sub)
		at += n
	}
	return out
}

// foldedAt returns a node for the first characters of a text, and how many they are.
func (t *tables) foldedAt(text []rune, behind bool) (int, *node) {
	if !behind {
		for n := min(3, len(text)); n >= 2; n-- {
			folded := make([]rune, n)
			for i, r := range text[:n] {
				if folded[i] = r; t.fold[r] != 0 {
					folded[i] = t.fold[r]
				}
			}
			if f, ok := t.multiple[string(folded)]; ok {
				return n, t.sequences(f)
			}
		}
		if f, ok := t.expanded[text[0]]; ok {
			return 1, t.sequences(f)
		}
	}
	return 1, t.oneOf(t.equal(text[0]))
}

// equal lists the characters that are equal to r but for case.
func (t *tables) equal(r rune) []rune {
	if f, ok := t.expanded[r]; ok {
		return append([]rune{r}, f.from...)
	}
	base := r
	if t.fold[r] != 0 {
		base = t.fold[r]
	}
	return append([]rune{base}, t.single[base]...)
}

// sequences is a node for a folding of several characters: one that folds to it, or the characters of it.
func (t *tables) sequences(f *folding) *node {
	sequence := list()
	for _, r := range f.to {
		sequence.nodes = append(sequence.nodes, t.oneOf(append([]rune{r}, t.single[r]...)))
	}
	return &node{kind: altNode, nodes: []*node{t.oneOf(f.from), sequence}}
}

// prepare joins neighboring texts, and replaces texts that ignore case.
func (n *node) prepare(behind bool) *node {
	switch n.kind {
	case listNode:
		var nodes []*node
		for _, sub := range n.nodes {
			last := len(nodes) - 1
			if sub.kind == textNode && last >= 0 && nodes[last].kind == textNode && nodes[last].fold == sub.fold {
				nodes[last] = &node{kind: textNode, fold: sub.fold, text: slices.Concat(nodes[last].text, sub.text)}
				continue
			}
			nodes = append(nodes, sub)
		}
		n.nodes = nodes
		fallthrough
	case altNode:
		for i, sub := range n.nodes {
			n.nodes[i] = sub.prepare(behind)
		}
	case textNode:
		if n.fold && len(n.text) > 0 {
			return unicodeTables().folded(n.text, behind)
		}
	default:
		if n.body != nil {
			n.body = n.body.prepare(behind || n.behind)
		}
	}
	return n
}
