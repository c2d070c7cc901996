package metrics

import (
	"bytes"
	"math"
	"strconv"
)

// Parsed is a measurement in a line; its name may be part of the line's memory.
type Parsed struct {
	Name  []byte
	Value float64
}

// Parser reads many lines as Parse does, without allocating for the lines that a run usually writes. Its zero value is
// ready to use.
type Parser struct {
	values []Parsed
}

// Parse returns the step of a line and its other members that are numbers. The values are valid until the next call.
func (p *Parser) Parse(line []byte) (step float64, values []Parsed, err error) {
	if step, ok := p.plain(line); ok {
		return step, p.values, nil
	}
	r, err := Parse(line)
	if err != nil {
		return 0, nil, err
	}
	p.values = p.values[:0]
	for name, x := range r.Values {
		p.values = append(p.values, Parsed{[]byte(name), x})
	}
	return float64(r.Step), p.values, nil
}

// plain reads an object of numbers whose names have no escapes, as a run writes nearly all of its lines. It reports
// whether the line is one.
func (p *Parser) plain(line []byte) (step float64, ok bool) {
	p.values = p.values[:0]
	rest, ok := bytes.CutPrefix(line, []byte("{"))
	stepped := false
	for ok && len(rest) > 0 {
		var name, number []byte
		if name, rest, ok = quotedName(rest); !ok {
			return 0, false
		}
		end := bytes.IndexAny(rest, ",}")
		if end < 0 {
			return 0, false
		}
		number = rest[:end]
		x, err := strconv.ParseFloat(string(number), 64)
		if err != nil || !jsonNumber(number) {
			return 0, false
		}
		if string(name) == "step" {
			step, stepped = x, true
		} else {
			p.values = append(p.values, Parsed{name, x})
		}
		if rest[end] == '}' {
			return step, stepped && len(rest) == end+1 && step == math.Trunc(step) && math.Abs(step) < 1<<53
		}
		rest = rest[end+1:]
	}
	return 0, false
}

// quotedName cuts a name and a colon from the front of a text.
func quotedName(text []byte) (name, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		return nil, nil, false
	}
	end := bytes.IndexByte(text[1:], '"') + 1
	if end < 1 || end+1 >= len(text) || text[end+1] != ':' {
		return nil, nil, false
	}
	name = text[1:end]
	for _, c := range name {
		if c == '\\' || c < ' ' || c > '~' {
			return nil, nil, false
		}
	}
	return name, text[end+2:], true
}

// jsonNumber reports whether a number that strconv reads is surely one of JSON's: it begins with a digit or a minus and
// a digit, has a digit behind its point, and no letter but e.
func jsonNumber(text []byte) bool {
	digits := bytes.TrimPrefix(text, []byte("-"))
	if len(digits) == 0 || digits[0] < '0' || digits[0] > '9' || digits[0] == '0' && len(digits) > 1 && digits[1] >= '0' &&
		digits[1] <= '9' {
		return false
	}
	for i, c := range digits {
		switch {
		case c >= '0' && c <= '9', c == 'e', c == 'E', c == '+', c == '-':
		case c != '.' || i+1 == len(digits) || digits[i+1] < '0' || digits[i+1] > '9':
			return false
		}
	}
	return true
}
