package translate

import (
	"fmt"
	"slices"
	"strings"
)

// parser turns tokens into a module. Its methods panic with a syntaxError.
type parser struct {
	tokens []token
	at     int
	depth  int // of nested types, expressions and statements
	m      *module
}

// The bounds keep the stack and the time that a source takes small. What is generated stays far below them.
const (
	maxDepth = 200  // of nested types, expressions and statements
	maxDeep  = 2000 // of an expression, of operators in a row too
)

type syntaxError struct{ error }

func parse(text string) (m *module, err error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, m: &module{
		constants: map[string]constant{}, names: map[string]int{}, aliases: map[string]*typ{}, byName: map[string]*function{},
	}}
	defer recoverSyntax(&err)
	for p.peek().kind != end {
		p.global()
	}
	slices.SortStableFunc(p.m.variables, func(a, b *variable) int {
		if (a.binding < 0) != (b.binding < 0) {
			return b.binding - a.binding
		}
		return a.binding - b.binding
	})
	return p.m, nil
}

func recoverSyntax(err *error) {
	if r := recover(); r != nil {
		s, ok := r.(syntaxError)
		if !ok {
			panic(r)
		}
		*err = s.error
	}
}

func fail(line int, format string, args ...any) {
	panic(syntaxError{fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...))})
}

func (p *parser) peek() token { return p.tokens[p.at] }
func (p *parser) next() token { t := p.tokens[p.at]; p.at = min(p.at+1, len(p.tokens)-1); return t }
func (p *parser) is(s string) bool {
	return p.peek().text == s && p.peek().kind != number
}

func (p *parser) accept(s string) bool {
	if p.is(s) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(s string) {
	if t := p.next(); t.text != s {
		fail(t.line, "expected %q, found %q", s, t.text)
	}
}

func (p *parser) name() string {
	t := p.next()
	if t.kind != name {
		fail(t.line, "expected a name, found %q", t.text)
	}
	return t.text
}

// enter counts a level of nesting, and leave its end.
func (p *parser) enter() {
	if p.depth++; p.depth > maxDepth {
		fail(p.peek().line, "nested more than %d deep", maxDepth)
	}
}

func (p *parser) leave() { p.depth-- }

// node completes an expression.
func (p *parser) node(e *expr) *expr {
	for _, a := range e.args {
		e.deep = max(e.deep, a.deep+1)
	}
	if e.deep > maxDeep {
		fail(e.line, "an expression of more than %d levels", maxDeep)
	}
	return e
}

// declared reads a name that the module declares.
func (p *parser) declared() string {
	line, n := p.peek().line, p.name()
	if first, ok := p.m.names[n]; ok {
		fail(line, "%s is defined twice, first in line %d", n, first)
	}
	p.m.names[n] = line
	return n
}

// attributes reads @name(…) and returns the arguments by name.
func (p *parser) attributes() map[string][]*expr {
	out := map[string][]*expr{}
	for p.accept("@") {
		n := p.name()
		out[n] = nil
		if p.accept("(") {
			for !p.accept(")") {
				out[n] = append(out[n], p.expression())
				p.accept(",")
			}
		}
	}
	return out
}

func (p *parser) global() {
	a := p.attributes()
	line := p.peek().line
	switch t := p.next(); t.text {
	case ";":
	case "const":
		p.constant()
	case "alias":
		n := p.declared()
		p.expect("=")
		p.m.aliases[n] = p.typ()
		p.expect(";")
	case "var":
		p.globalVariable(a, line)
	case "fn":
		p.function(a, line)
	default:
		fail(line, "expected global item, found %q", t.text)
	}
}

// constant reads a constant. It may name those before it.
func (p *parser) constant() {
	c := constant{name: p.declared()}
	if p.accept(":") {
		c.typ = p.typ()
	}
	p.expect("=")
	c.value = p.expression()
	p.expect(";")
	each(c.value, func(e *expr) {
		if _, ok := p.m.constants[e.text]; e.kind == identifier && !ok {
			fail(e.line, "no definition of the constant %s above", e.text)
		}
	})
	if x, ok := p.m.fold(c.value, nil); ok {
		c.value = x.literal(c.value.line)
	}
	p.m.constants[c.name] = c
}

func (p *parser) globalVariable(a map[string][]*expr, line int) {
	v := &variable{binding: -1, line: line}
	p.expect("<")
	space := p.name()
	if p.accept(",") {
		v.writable = p.name() == "read_write"
	}
	p.expect(">")
	v.name = p.declared()
	p.expect(":")
	v.typ = p.typ()
	p.expect(";")
	switch space {
	case "storage":
		if g, ok := a["group"]; !ok || len(g) != 1 || p.m.integer(g[0]) != 0 {
			fail(line, "%s must lie in group 0", v.name)
		}
		b, ok := a["binding"]
		if !ok || len(b) != 1 {
			fail(line, "%s has no binding", v.name)
		}
		if v.binding = p.m.integer(b[0]); v.binding < 0 {
			fail(line, "%s has binding %d", v.name, v.binding)
		}
	case "workgroup":
	default:
		fail(line, "variables of %s memory are not supported", space)
	}
	p.m.variables = append(p.m.variables, v)
}

func (p *parser) function(a map[string][]*expr, line int) {
	f := &function{name: p.declared(), result: voidType, line: line}
	if _, ok := a["compute"]; ok {
		f.workgroup = a["workgroup_size"]
		if len(f.workgroup) == 0 {
			fail(line, "the entry point %s has no workgroup size", f.name)
		}
	}
	p.expect("(")
	for !p.accept(")") {
		builtin := ""
		if b := p.attributes()["builtin"]; len(b) == 1 {
			builtin = b[0].text
		}
		n := p.name()
		p.expect(":")
		f.parameters = append(f.parameters, parameter{n, builtin, p.typ()})
		p.accept(",")
	}
	if p.accept("->") {
		f.result = p.typ()
	}
	f.body = p.block()
	p.m.functions = append(p.m.functions, f)
	p.m.byName[f.name] = f
}

// isType reports whether a name begins a type.
func (p *parser) isType(n string) bool {
	switch n {
	case "f32", "u32", "i32", "bool", "array", "atomic", "vec2", "vec3", "vec4":
		return true
	}
	_, ok := p.m.aliases[n]
	return ok
}

func (p *parser) typ() *typ {
	p.enter()
	defer p.leave()
	t := p.next()
	switch t.text {
	case "f32":
		return f32Type
	case "u32":
		return u32Type
	case "i32":
		return i32Type
	case "bool":
		return boolType
	case "vec2", "vec3", "vec4":
		p.expect("<")
		of := p.typ()
		p.expect(">")
		return &typ{vector, int(t.text[3] - '0'), of}
	case "atomic":
		p.expect("<")
		of := p.typ()
		p.expect(">")
		return &typ{atomic, 0, of}
	case "array":
		p.expect("<")
		a := &typ{kind: array, of: p.typ()}
		if p.accept(",") {
			if a.n = p.m.integer(p.sum()); a.n < 1 || a.n > maxElements/max(1, a.of.elements()) {
				fail(t.line, "an array of %d elements", a.n)
			}
		}
		p.expect(">")
		return a
	}
	if a, ok := p.m.aliases[t.text]; ok {
		return a
	}
	fail(t.line, "expected a type, found %q", t.text)
	return nil
}

// levels are the binary operators, the loosest first.
var levels = [][]string{{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"},
	{"*", "/", "%"}}

func (p *parser) expression() *expr { return p.binary(0) }

// sum is an expression that may stand before the ">" of a template.
func (p *parser) sum() *expr { return p.binary(8) }

func (p *parser) binary(level int) *expr {
	if level == len(levels) {
		return p.unary()
	}
	e := p.binary(level + 1)
	for {
		op := p.operator(levels[level])
		if op == "" {
			return e
		}
		e = p.node(&expr{kind: binary, text: op, args: []*expr{e, p.binary(level + 1)}, line: e.line})
	}
}

func (p *parser) operator(ops []string) string {
	t := p.peek()
	if t.kind != symbol {
		return ""
	}
	if t.text == ">" && p.tokens[p.at+1].text == ">" { // the lexer leaves ">>" as two
		if !slices.Contains(ops, ">>") {
			return ""
		}
		p.next()
		p.next()
		return ">>"
	}
	if !slices.Contains(ops, t.text) {
		return ""
	}
	p.next()
	return t.text
}

func (p *parser) unary() *expr {
	p.enter()
	defer p.leave()
	t := p.peek()
	if t.kind == symbol && strings.Contains("-!~&", t.text) {
		p.next()
		return p.node(&expr{kind: unary, text: t.text, args: []*expr{p.unary()}, line: t.line})
	}
	e := p.primary()
	for {
		switch {
		case p.accept("["):
			e = p.node(&expr{kind: index, args: []*expr{e, p.expression()}, line: t.line})
			p.expect("]")
		case p.accept("."):
			e = p.node(&expr{kind: member, text: p.name(), args: []*expr{e}, line: t.line})
		default:
			return e
		}
	}
}

func (p *parser) primary() *expr {
	t := p.peek()
	switch {
	case t.kind == number:
		p.next()
		return &expr{kind: literal, text: t.text, line: t.line}
	case p.accept("("):
		e := p.expression()
		p.expect(")")
		return e
	case t.text == "true" || t.text == "false":
		p.next()
		return &expr{kind: literal, text: t.text, line: t.line}
	case t.text == "bitcast":
		p.next()
		p.expect("<")
		to := p.typ()
		p.expect(">")
		return p.node(&expr{kind: bitcast, to: to, args: p.arguments(), line: t.line})
	case p.isType(t.text):
		return p.constructor(t)
	case t.kind == name:
		p.next()
		if p.is("(") {
			return p.node(&expr{kind: call, text: t.text, args: p.arguments(), line: t.line})
		}
		return &expr{kind: identifier, text: t.text, line: t.line}
	}
	fail(t.line, "expected an expression, found %q", t.text)
	return nil
}

// constructor reads T(…). vecN(…) has the type of its arguments.
func (p *parser) constructor(t token) *expr {
	if p.tokens[p.at+1].text == "(" && strings.HasPrefix(t.text, "vec") && len(t.text) == 4 {
		p.next()
		return p.node(&expr{kind: construct, to: &typ{vector, int(t.text[3] - '0'), nil}, args: p.arguments(), line: t.line})
	}
	to := p.typ()
	return p.node(&expr{kind: construct, to: to, args: p.arguments(), line: t.line})
}

func (p *parser) arguments() []*expr {
	p.expect("(")
	var out []*expr
	for !p.accept(")") {
		out = append(out, p.expression())
		if !p.is(")") {
			p.expect(",")
		}
	}
	return out
}
