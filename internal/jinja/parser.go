package jinja

import (
	"slices"
	"strings"
)

// parser reads tokens into statements, as jinja2.parser does.
type parser struct {
	tokens []token
	at     int
	depth  int
	used   map[string]bool // names that expressions read
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) ahead() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokenEnd {
		p.at++
	}
	return t
}

func (p *parser) is(text string) bool {
	t := p.peek()
	return (t.kind == tokenName || t.kind == tokenOperator) && t.text == text
}

func (p *parser) skip(text string) bool {
	if !p.is(text) {
		return false
	}
	p.at++
	return true
}

func (p *parser) expect(text string) {
	if !p.skip(text) {
		p.unexpected(sprintf("%q", text))
	}
}

func (p *parser) name() string {
	if p.peek().kind != tokenName {
		p.unexpected("a name")
	}
	return p.next().text
}

func (p *parser) unexpected(expected string) {
	t := p.peek()
	found := sprintf("%q", t.text)
	switch t.kind {
	case tokenEnd:
		found = "the end of the template"
	case tokenPrintEnd, tokenTagEnd:
		found = "the end of the tag"
	case tokenNumber:
		found = sprintf("%v", t.value)
	}
	failAt(t.line, "found %s, expected %s", found, expected)
}

// nest counts nested expressions and statements; the result ends one.
func (p *parser) nest() func() {
	if p.depth++; p.depth > maxDepth {
		failAt(p.peek().line, "more than %d nested expressions or tags", maxDepth)
	}
	return func() { p.depth-- }
}

// body reads statements up to a tag with one of the names. It consumes the tag's name.
func (p *parser) body(ends ...string) (all []statement, end string) {
	defer p.nest()()
	for {
		switch t := p.next(); t.kind {
		case tokenData:
			if t.text != "" {
				all = append(all, data(t.text))
			}
		case tokenPrint:
			all = append(all, output{p.tuple(p.expression, "")})
			p.end(tokenPrintEnd)
		case tokenTag:
			if name := p.peek(); name.kind == tokenName && slices.Contains(ends, name.text) {
				p.at++
				return all, name.text
			}
			all = append(all, p.statement())
			p.end(tokenTagEnd)
		case tokenEnd:
			if len(ends) > 0 {
				failAt(t.line, "found the end of the template, expected the tag %s", strings.Join(ends, " or "))
			}
			return all, ""
		}
	}
}

func (p *parser) end(k kind) {
	if p.peek().kind != k {
		p.unexpected("the end of the tag")
	}
	p.at++
}

// block reads the rest of a tag, and statements up to the end tag, up to whose name it consumes.
func (p *parser) block(ends ...string) (all []statement, end string) {
	p.end(tokenTagEnd)
	return p.body(ends...)
}

func (p *parser) until(end string) []statement {
	all, _ := p.block(end)
	return all
}

func (p *parser) statement() statement {
	line := p.peek().line
	switch tag := p.name(); tag {
	case "for":
		return p.loop()
	case "if":
		return p.condition()
	case "set":
		return p.set()
	case "macro":
		m := &macroTag{name: p.name()}
		m.signature(p)
		m.read(p, "endmacro")
		return m
	case "call":
		return p.callTag(line)
	case "filter":
		f := p.filter(buffered{})
		return &filterTag{f, p.until("endfilter")}
	case "with":
		return p.with()
	case "generation":
		return &scopeTag{p.until("endgeneration")}
	case "print":
		var all printTag
		for p.peek().kind != tokenTagEnd {
			if len(all) > 0 {
				p.expect(",")
			}
			all = append(all, output{p.expression()})
		}
		return all
	case "break", "continue":
		return jump(tag)
	case "include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug":
		failAt(line, "the tag %s is not supported", tag)
	default:
		failAt(line, "found the tag %q, which Jinja does not have here", tag)
	}
	return nil
}

func (p *parser) loop() statement {
	f := &forTag{target: p.targets("in")}
	p.expect("in")
	f.over = p.tuple(p.or, "recursive")
	if p.skip("if") {
		f.test = p.expression()
	}
	f.recursive = p.skip("recursive")
	var end string
	f.body, end = p.block("endfor", "else")
	if end == "else" {
		f.otherwise = p.until("endfor")
	}
	return f
}

func (p *parser) condition() statement {
	c := &ifTag{}
	for {
		test := p.tuple(p.or, "")
		body, end := p.block("elif", "else", "endif")
		c.arms = append(c.arms, arm{test, body})
		switch end {
		case "else":
			c.otherwise = p.until("endif")
			return c
		case "endif":
			return c
		}
	}
}

func (p *parser) set() statement {
	target := p.targets("=")
	if p.skip("=") {
		return &setTag{target, p.tuple(p.expression, "")}
	}
	s := &setBlock{target: target}
	if p.is("|") {
		s.filter = p.filters(buffered{})
	}
	s.body = p.until("endset")
	return s
}

func (p *parser) callTag(line int) statement {
	c := &callTag{}
	if p.is("(") {
		c.signature(p)
	}
	call, ok := p.expression().(*call)
	if !ok {
		failAt(line, "call: expected a call")
	}
	c.name, c.call = "caller", call
	c.read(p, "endcall")
	return c
}

func (p *parser) with() statement {
	w := &withTag{}
	for p.peek().kind != tokenTagEnd {
		if len(w.targets) > 0 {
			p.expect(",")
		}
		w.targets = append(w.targets, p.targets("="))
		p.expect("=")
		w.values = append(w.values, p.expression())
	}
	w.body = p.until("endwith")
	return w
}

// signature reads the parameters of a macro or caller.
func (m *macroTag) signature(p *parser) {
	p.expect("(")
	for !p.skip(")") {
		if len(m.params) > 0 {
			p.expect(",")
		}
		m.params = append(m.params, p.storable())
		if p.skip("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.unexpected("a default of the parameter")
		}
	}
}

// read reads the body, and notes the names that it uses.
func (m *macroTag) read(p *parser, end string) {
	outer := p.used
	p.used = map[string]bool{}
	m.body, m.uses = p.until(end), p.used
	for n := range m.uses {
		outer[n] = true
	}
	p.used = outer
}

// storable reads a name that can be assigned.
func (p *parser) storable() string {
	n := p.name()
	if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, n) {
		failAt(p.peek().line, "can't assign to %q", n)
	}
	return n
}

// targets reads the targets of an assignment: names and attributes of namespaces, nested in tuples and lists. They end
// at a token.
func (p *parser) targets(end string) target {
	defer p.nest()()
	var all tupleTarget
	for {
		all = append(all, p.target())
		if !p.skip(",") {
			break
		}
		if p.is(end) || p.is(")") || p.peek().kind == tokenTagEnd {
			return all
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return all
}

func (p *parser) target() target {
	if p.skip("(") {
		t := p.targets(")")
		p.expect(")")
		return t
	}
	name := p.storable()
	if p.skip(".") {
		return attrTarget{name, p.name()}
	}
	return nameTarget(name)
}

// tuple reads an expression, or several with commas, which are a tuple. It may end before the name end.
func (p *parser) tuple(one func() expression, end string) expression {
	first := one()
	if !p.is(",") {
		return first
	}
	all := tupleExpr{first}
	for p.skip(",") {
		if k := p.peek().kind; k == tokenPrintEnd || k == tokenTagEnd || p.is(")") || end != "" && p.is(end) {
			break
		}
		all = append(all, one())
	}
	return all
}

// filters reads the filters behind a value.
func (p *parser) filters(of expression) expression {
	for n := 0; p.skip("|"); n++ {
		p.chain(n)
		of = p.filter(of)
	}
	return of
}

func (p *parser) filter(of expression) expression {
	line, name := p.peek().line, p.name()
	f, ok := filters[name]
	if !ok {
		failAt(line, "the filter %q is not supported", name)
	}
	x := &filterExpr{of: of, filter: f}
	if p.is("(") {
		x.args = p.arguments()
	}
	return x
}

// test reads a test behind "is".
func (p *parser) test(of expression) expression {
	negated := p.skip("not")
	line, name := p.peek().line, p.name()
	t, ok := tests[name]
	if !ok {
		failAt(line, "the test %q is not supported", name)
	}
	x := &testExpr{of: of, name: name, test: t}
	switch n := p.peek(); {
	case p.is("("):
		x.args = p.arguments()
	case p.is("is"):
		failAt(line, "tests cannot be chained with is")
	case n.kind == tokenString, n.kind == tokenNumber, p.is("["), p.is("{"),
		n.kind == tokenName && !slices.Contains([]string{"else", "or", "and"}, n.text):
		x.args.pos = []expression{p.postfix(p.primary())}
	}
	if negated {
		return not{x}
	}
	return x
}

// arguments reads the arguments of a call.
func (p *parser) arguments() (a arguments) {
	line := p.peek().line
	p.expect("(")
	for first := true; !p.skip(")"); first = false {
		if !first {
			p.expect(",")
			if p.skip(")") {
				break
			}
		}
		valid := a.mapped == nil
		switch {
		case p.skip("*"):
			valid = valid && a.rest == nil
			a.rest = p.expression()
		case p.skip("**"):
			a.mapped = p.expression()
		case p.peek().kind == tokenName && p.ahead().kind == tokenOperator && p.ahead().text == "=":
			a.names = append(a.names, p.name())
			p.expect("=")
			a.named = append(a.named, p.expression())
		default:
			valid = valid && a.rest == nil && len(a.named) == 0
			a.pos = append(a.pos, p.expression())
		}
		if !valid {
			failAt(line, "invalid order of the arguments of a call")
		}
	}
	return a
}

// chain bounds the operators in a row.
func (p *parser) chain(n int) {
	if n > maxChain {
		failAt(p.peek().line, "more than %d operators in a row", maxChain)
	}
}
