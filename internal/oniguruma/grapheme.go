package oniguruma

import (
	"slices"
	"unicode/utf8"
)

// graphemeRange are characters of one class of the rules for grapheme clusters.
type graphemeRange struct {
	low, high rune
	class     string
}

func graphemeRanges(classes map[string]set) []graphemeRange {
	var out []graphemeRange
	for class, list := range classes {
		sum(list)
		for i := 0; i < len(list); i += 2 {
			out = append(out, graphemeRange{list[i], list[i+1], class})
		}
	}
	slices.SortFunc(out, func(a, b graphemeRange) int { return int(a.low - b.low) })
	return out
}

func (t *tables) grapheme(r rune) string {
	i, _ := slices.BinarySearchFunc(t.graphemes, r, func(g graphemeRange, r rune) int { return int(g.high) - int(r) })
	if i < len(t.graphemes) && t.graphemes[i].low <= r {
		return t.graphemes[i].class
	}
	return ""
}

func oneOf(class string, list ...string) bool { return slices.Contains(list, class) }

// graphemeBoundary reports whether a grapheme cluster ends or begins at a place, by the rules GB1 to GB13 of Unicode
// that Oniguruma has: it lacks GB9c.
func graphemeBoundary(s string, at int) bool {
	if at == 0 || at == len(s) {
		return true
	}
	t := unicodeTables()
	before, n := utf8.DecodeLastRuneInString(s[:at])
	after, _ := utf8.DecodeRuneInString(s[at:])
	from, to := t.grapheme(before), t.grapheme(after)
	hangul := func(class string) bool { return oneOf(class, "L", "V", "T", "LV", "LVT") }
	switch {
	case from == "CR" && to == "LF": // GB3
		return false
	case oneOf(from, "CR", "LF", "Control"), oneOf(to, "CR", "LF", "Control"): // GB4, GB5
		return true
	case hangul(from) && hangul(to): // GB6 to GB8
		return !(from == "L" && to != "T" || oneOf(from, "LV", "V") && oneOf(to, "V", "T") || oneOf(from, "LVT", "T") && to == "T")
	case oneOf(to, "Extend", "ZWJ", "SpacingMark"), from == "Prepend": // GB9 to GB9b
		return false
	case from == "ZWJ" && t.ranges[t.names["extendedpictographic"]].has(after): // GB11
		return !t.joinsPictograph(s[:at-n])
	case from == "Regional_Indicator" && to == "Regional_Indicator": // GB12, GB13
		return t.trailingIndicators(s[:at-n])%2 != 0
	}
	return true
}

// joinsPictograph reports whether s ends in a pictograph and characters that extend it.
func (t *tables) joinsPictograph(s string) bool {
	for s != "" {
		r, n := utf8.DecodeLastRuneInString(s)
		if t.ranges[t.names["extendedpictographic"]].has(r) {
			return true
		}
		if t.grapheme(r) != "Extend" {
			return false
		}
		s = s[:len(s)-n]
	}
	return false
}

func (t *tables) trailingIndicators(s string) (count int) {
	for s != "" {
		r, n := utf8.DecodeLastRuneInString(s)
		if t.grapheme(r) != "Regional_Indicator" {
			break
		}
		s = s[:len(s)-n]
		count++
	}
	return count
}
