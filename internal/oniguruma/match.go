package oniguruma

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// maxRetries is how often a match may backtrack, as in Oniguruma.
const maxRetries = 10_000_000

var errRetries = errors.New("backtracks more than 10,000,000 times")

// matcher runs a program over a text.
type matcher struct {
	program []instruction
	s       string // the whole text
	text    string // what may be consumed: in a look-behind up to its end
	start   int    // of the search
	from    int    // of the attempt
	keep    int    // where the match begins
	slots   []int
	stack   []choice
	retries int
	err     error
}

// choice is a way to go on that has not been tried, or a slot to restore.
type choice struct {
	kind choiceKind
	pc   int
	at   int
	low  int // greedyLoop: the least place. restoreSlot: the value
	left int // lazyLoop: how many characters more
}

type choiceKind uint8

const (
	otherWay choiceKind = iota
	greedyLoop
	lazyLoop
	restoreSlot
	restoreKeep
)

// search returns the first match from a place on; -1 if there is none.
func (m *matcher) search(first *byteSet, from int) (int, int) {
	m.start = from
	for at := from; at <= len(m.s); {
		if first == nil || at < len(m.s) && first.has(m.s[at]) {
			m.from, m.keep, m.retries, m.stack = at, at, 0, m.stack[:0]
			for i := range m.slots {
				m.slots[i] = -1
			}
			if end := m.run(0, at, -1); end >= 0 || m.err != nil {
				return m.keep, end
			}
		}
		_, n := utf8.DecodeRuneInString(m.s[at:])
		at += max(n, 1)
	}
	return -1, -1
}

func (m *matcher) push(c choice) { m.stack = append(m.stack, c) }

func (m *matcher) set(slot, value int) {
	m.push(choice{kind: restoreSlot, pc: slot, low: m.slots[slot]})
	m.slots[slot] = value
}

// run runs the program from pc up to its opEnd and returns the place there; -1 if nothing matches. If target is not
// negative, the run must end at it. What the run could have tried else is dropped.
func (m *matcher) run(pc, at, target int) int {
	base := len(m.stack)
	for m.err == nil {
		i := &m.program[pc]
		next := -1
		switch i.op {
		case opEnd:
			if target < 0 || at == target {
				m.cut(base)
				return at
			}
		case opText:
			if strings.HasPrefix(m.text[at:], i.text) {
				next = at + len(i.text)
			}
		case opClass:
			if n := i.class.at(m.text, at); n > 0 {
				next = at + n
			}
		case opAny:
			if at < len(m.text) {
				_, n := utf8.DecodeRuneInString(m.s[at:])
				next = at + n
			}
		case opLoop:
			next = m.loop(i, pc, at)
		case opSplit:
			if i.first != nil && (at >= len(m.text) || !i.first.has(m.s[at])) {
				pc = i.x
				continue
			}
			m.push(choice{kind: otherWay, pc: i.x, at: at})
			next = at
		case opSplitLazy:
			m.push(choice{kind: otherWay, pc: pc + 1, at: at})
			pc = i.x
			continue
		case opJump:
			pc = i.x
			continue
		case opSave, opLoopStart:
			m.set(i.x, at)
			next = at
		case opLoopEnd:
			if m.slots[i.x] == at {
				pc = i.y
				continue
			}
			next = at
		default:
			if next = m.special(i, pc, at); next >= 0 && i.x > 0 {
				pc, at = i.x, next
				continue
			}
		}
		if next >= 0 {
			pc, at = pc+1, next
		} else if pc, at = m.backtrack(base); pc < 0 {
			return -1
		}
	}
	return -1
}

// special runs the instructions that are rare.
func (m *matcher) special(i *instruction, pc, at int) int {
	ok := false
	switch i.op {
	case opAnchor:
		ok = m.anchor(i, at)
	case opBack:
		return m.back(i.backs, at)
	case opKeep:
		m.push(choice{kind: restoreKeep, low: m.keep})
		m.keep, ok = at, true
	case opPeek:
		ok = (i.class.at(m.text, at) > 0) != i.negative
	case opAtomic:
		return m.run(pc+1, at, -1)
	case opAhead, opBehind:
		base := len(m.stack)
		found := false
		if i.op == opAhead {
			found = m.run(pc+1, at, -1) >= 0
		} else {
			found = m.behind(i, pc, at)
		}
		if found && i.negative {
			m.undo(base)
		}
		ok = found != i.negative
	}
	if !ok {
		return -1
	}
	return at
}

// behind runs a look-behind from each place from which it can end here, the nearest first.
func (m *matcher) behind(i *instruction, pc, at int) bool {
	defer func(text string) { m.text = text }(m.text)
	m.text = m.s[:at]
	from := at
	for n := 0; i.max == unlimited || n <= i.max; n++ {
		if n >= i.min && m.run(pc+1, from, at) >= 0 {
			return true
		}
		if from == 0 || m.err != nil {
			return false
		}
		_, size := utf8.DecodeLastRuneInString(m.s[:from])
		from -= size
	}
	return false
}

// loop repeats a class and returns the place behind, or -1.
func (m *matcher) loop(i *instruction, pc, at int) int {
	count, low := 0, at
	most := i.max
	if i.lazy {
		most = i.min
	}
	for most == unlimited || count < most {
		n := i.class.at(m.text, at)
		if n == 0 {
			break
		}
		at += n
		if count++; count == i.min {
			low = at
		}
	}
	switch {
	case count < i.min:
		return -1
	case i.lazy && i.max != i.min:
		left := unlimited
		if i.max != unlimited {
			left = i.max - i.min
		}
		m.push(choice{kind: lazyLoop, pc: pc, at: at, left: left})
	case !i.lazy && !i.possessive && at > low:
		m.push(choice{kind: greedyLoop, pc: pc, at: at, low: low})
	}
	return at
}

// backtrack takes the last choice above base and returns where to go on; pc is -1 if there is none.
func (m *matcher) backtrack(base int) (pc, at int) {
	if m.retries++; m.retries > maxRetries {
		m.err = errRetries
		return -1, 0
	}
	for len(m.stack) > base {
		c := &m.stack[len(m.stack)-1]
		switch c.kind {
		case otherWay:
			m.stack = m.stack[:len(m.stack)-1]
			return c.pc, c.at
		case greedyLoop:
			_, n := utf8.DecodeLastRuneInString(m.s[:c.at])
			c.at -= n
			pc, at = c.pc+1, c.at
			if c.at <= c.low {
				m.stack = m.stack[:len(m.stack)-1]
			}
			return pc, at
		case lazyLoop:
			n := 0
			if c.left != 0 {
				n = m.program[c.pc].class.at(m.text, c.at)
			}
			if n == 0 {
				m.stack = m.stack[:len(m.stack)-1]
				continue
			}
			if c.at += n; c.left > 0 {
				c.left--
			}
			return c.pc + 1, c.at
		}
		m.restore(c)
		m.stack = m.stack[:len(m.stack)-1]
	}
	return -1, 0
}

func (m *matcher) restore(c *choice) {
	switch c.kind {
	case restoreSlot:
		m.slots[c.pc] = c.low
	case restoreKeep:
		m.keep = c.low
	}
}

// undo restores what changed since the stack was so high, and drops the choices.
func (m *matcher) undo(base int) {
	for n := len(m.stack) - 1; n >= base; n-- {
		m.restore(&m.stack[n])
	}
	m.stack = m.stack[:base]
}

// cut drops the choices above base, but keeps the entries that restore values.
func (m *matcher) cut(base int) {
	kept := m.stack[:base]
	for _, c := range m.stack[base:] {
		if c.kind == restoreSlot || c.kind == restoreKeep {
			kept = append(kept, c)
		}
	}
	m.stack = kept
}

// back matches the text of the last of some groups that has one.
func (m *matcher) back(groups []int, at int) int {
	for n := len(groups) - 1; n >= 0; n-- {
		from, to := m.slots[2*groups[n]], m.slots[2*groups[n]+1]
		if from < 0 || to < from {
			continue
		}
		if text := m.s[from:to]; strings.HasPrefix(m.text[at:], text) {
			return at + len(text)
		}
	}
	return -1
}

func (m *matcher) anchor(i *instruction, at int) bool {
	s := m.s
	switch i.anchor {
	case lineStart: // not after a newline that ends the text
		return at == 0 || at < len(s) && s[at-1] == '\n'
	case lineEnd:
		return at == len(s) || s[at] == '\n'
	case textStart:
		return at == 0
	case textEnd:
		return at == len(s)
	case textEndOrNewline:
		return at == len(s) || s[at:] == "\n"
	case searchStart:
		return at == m.start
	case segmentBoundary, notSegmentBoundary:
		return graphemeBoundary(s, at) == (i.anchor == segmentBoundary)
	}
	before := false
	if r, n := utf8.DecodeLastRuneInString(s[:at]); n > 0 {
		before = i.word.set.has(r)
	}
	after := i.word.at(s, at) > 0
	return (before != after) == (i.anchor == wordBoundary)
}
