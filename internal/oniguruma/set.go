package oniguruma

import (
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"
)

// set is a set of characters: the first and last ones of its ranges, in order, which neither overlap nor touch.
type set []rune

// setOf sorts and joins ranges.
func setOf(ranges ...rune) set {
	type pair struct{ low, high rune }
	pairs := make([]pair, 0, len(ranges)/2)
	for i := 0; i < len(ranges); i += 2 {
		pairs = append(pairs, pair{ranges[i], ranges[i+1]})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return int(a.low - b.low) })
	var out set
	for _, p := range pairs {
		if n := len(out); n > 0 && p.low <= out[n-1]+1 {
			out[n-1] = max(out[n-1], p.high)
		} else {
			out = append(out, p.low, p.high)
		}
	}
	return out
}

func (s set) or(t set) set { return setOf(slices.Concat(s, t)...) }

func (s set) and(t set) set { return s.not().or(t.not()).not() }

// not is the complement.
func (s set) not() set {
	var out set
	next := rune(0)
	for i := 0; i < len(s); i += 2 {
		if s[i] > next {
			out = append(out, next, s[i]-1)
		}
		next = s[i+1] + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, next, utf8.MaxRune)
	}
	return out
}

func (s set) has(r rune) bool {
	i, exact := slices.BinarySearch(s, r)
	return exact || i%2 == 1
}

// Set is a set of characters.
type Set struct{ set set }

// Has reports whether the set has a character.
func (s Set) Has(r rune) bool { return s.set.has(r) }

// Property returns a function that returns the characters of a Unicode property, which \p{name} matches. The tables are
// unpacked at its first call, which panics if there is no such property.
func Property(name string) func() Set {
	return sync.OnceValue(func() Set {
		t := unicodeTables()
		index, ok := t.names[lowerASCII([]rune(name))]
		if !ok {
			panic(fmt.Sprintf("oniguruma: no property %q", name))
		}
		return Set{t.ranges[index]}
	})
}

// byteSet is a set of bytes.
type byteSet [4]uint64

func (b *byteSet) add(c byte)      { b[c>>6] |= 1 << (c & 63) }
func (b *byteSet) has(c byte) bool { return b[c>>6]>>(c&63)&1 != 0 }

// class is a set in the form for matching.
type class struct {
	ascii byteSet
	set   set
}

func newClass(s set) *class {
	c := &class{set: s}
	for r := range rune(utf8.RuneSelf) {
		if s.has(r) {
			c.ascii.add(byte(r))
		}
	}
	return c
}

// at returns the length of the character of s at a place if the class has it, else 0. A byte that is not UTF-8 counts
// as U+FFFD.
func (c *class) at(s string, at int) int {
	if at >= len(s) {
		return 0
	}
	if b := s[at]; b < utf8.RuneSelf {
		if c.ascii.has(b) {
			return 1
		}
		return 0
	}
	if r, n := utf8.DecodeRuneInString(s[at:]); c.set.has(r) {
		return n
	}
	return 0
}

// firstBytes adds the bytes with which the characters of the set begin.
func (s set) firstBytes(b *byteSet) {
	for i := 0; i < len(s); i += 2 {
		low, high := s[i], s[i+1]
		for r := low; r <= high && r < utf8.RuneSelf; r++ {
			b.add(byte(r))
		}
		if high >= utf8.RuneSelf {
			from, to := firstByte(max(low, utf8.RuneSelf)), firstByte(high)
			for c := int(from); c <= int(to); c++ {
				b.add(byte(c))
			}
		}
	}
	if s.has(utf8.RuneError) {
		for c := utf8.RuneSelf; c <= 0xFF; c++ {
			b.add(byte(c))
		}
	}
}

// firstByte is the first byte of a character; a surrogate has the first byte of the other characters of its block.
func firstByte(r rune) byte {
	if r >= 0xD800 && r < 0xE000 {
		return 0xED
	}
	return utf8.AppendRune(nil, r)[0]
}
