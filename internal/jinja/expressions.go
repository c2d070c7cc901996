package jinja

import "slices"

// Expressions are read in the order of Jinja's precedence, the weakest first.

func (p *parser) expression() expression {
	defer p.nest()()
	x := p.or()
	for n := 0; p.skip("if"); n++ {
		p.chain(n)
		c := &conditional{test: p.or(), then: x}
		if p.skip("else") {
			c.otherwise = p.expression()
		}
		x = c
	}
	return x
}

func (p *parser) or() expression {
	x := p.and()
	for n := 0; p.skip("or"); n++ {
		p.chain(n)
		x = &logical{x, p.and(), true}
	}
	return x
}

func (p *parser) and() expression {
	x := p.negation()
	for n := 0; p.skip("and"); n++ {
		p.chain(n)
		x = &logical{x, p.negation(), false}
	}
	return x
}

func (p *parser) negation() expression {
	if !p.is("not") {
		return p.comparison()
	}
	defer p.nest()()
	p.next()
	return not{p.negation()}
}

func (p *parser) comparison() expression {
	first := p.sum()
	c := &comparison{first: first}
	for {
		p.chain(len(c.rest))
		t := p.peek()
		operator := t.text
		switch {
		case t.kind == tokenOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			p.next()
		case p.skip("in"):
		case p.is("not") && p.ahead().kind == tokenName && p.ahead().text == "in":
			p.at += 2
			operator = "not in"
		case len(c.rest) == 0:
			return first
		default:
			return c
		}
		c.rest = append(c.rest, operand{operator, p.sum()})
	}
}

func (p *parser) sum() expression     { return p.binary(p.concat, "+", "-") }
func (p *parser) product() expression { return p.binary(p.power, "*", "/", "//", "%") }
func (p *parser) power() expression {
	return p.binary(func() expression { return p.unary(true) }, "**")
}

func (p *parser) binary(operand func() expression, operators ...string) expression {
	x := operand()
	for n := 0; ; n++ {
		p.chain(n)
		t := p.peek()
		if t.kind != tokenOperator || !slices.Contains(operators, t.text) {
			return x
		}
		p.next()
		x = &arithmetic{t.text, x, operand()}
	}
}

func (p *parser) concat() expression {
	all := concat{p.product()}
	for p.skip("~") {
		all = append(all, p.product())
	}
	if len(all) == 1 {
		return all[0]
	}
	return all
}

func (p *parser) unary(filtered bool) expression {
	defer p.nest()()
	var x expression
	switch {
	case p.skip("-"):
		x = &sign{p.unary(false), true}
	case p.skip("+"):
		x = &sign{p.unary(false), false}
	default:
		x = p.primary()
	}
	x = p.postfix(x)
	for n := 0; filtered; n++ {
		p.chain(n)
		switch {
		case p.skip("|"):
			x = p.filter(x)
		case p.skip("is"):
			x = p.test(x)
		case p.is("("):
			x = &call{x, p.arguments()}
		default:
			return x
		}
	}
	return x
}

func (p *parser) primary() expression {
	t := p.next()
	switch {
	case t.kind == tokenName:
		switch t.text {
		case "true", "True":
			return constant{true}
		case "false", "False":
			return constant{false}
		case "none", "None":
			return constant{nil}
		}
		p.used[t.text] = true
		return name(t.text)
	case t.kind == tokenString:
		s := t.text
		for p.peek().kind == tokenString {
			s += p.next().text
		}
		return constant{s}
	case t.kind == tokenNumber:
		return constant{t.value}
	case t.kind == tokenOperator && t.text == "(":
		if p.skip(")") {
			return tupleExpr{}
		}
		x := p.tuple(p.expression, "")
		p.expect(")")
		return x
	case t.kind == tokenOperator && t.text == "[":
		var l listExpr
		for first := true; !p.skip("]"); first = false {
			if !first {
				p.expect(",")
				if p.skip("]") {
					break
				}
			}
			l = append(l, p.expression())
		}
		return l
	case t.kind == tokenOperator && t.text == "{":
		return p.dict()
	}
	p.at -= min(p.at, 1)
	if t.kind == tokenEnd {
		p.at = len(p.tokens) - 1
	}
	p.unexpected("an expression")
	return nil
}

func (p *parser) dict() expression {
	d := &dictExpr{}
	for first := true; !p.skip("}"); first = false {
		if !first {
			p.expect(",")
			if p.skip("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.expect(":")
		d.values = append(d.values, p.expression())
	}
	return d
}

func (p *parser) postfix(x expression) expression {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.skip("."):
			switch t := p.next(); {
			case t.kind == tokenName:
				x = &attribute{x, t.text}
			case t.kind == tokenNumber && isInt(t.value):
				x = &item{x, constant{t.value}}
			default:
				failAt(t.line, "expected a name or a number behind the dot")
			}
		case p.skip("["):
			x = p.subscript(x)
		case p.is("("):
			x = &call{x, p.arguments()}
		default:
			return x
		}
	}
}

func isInt(v any) bool {
	_, ok := v.(int64)
	return ok
}

func (p *parser) subscript(x expression) expression {
	var bounds [3]expression
	n := 0
	for {
		switch {
		case p.skip(":"):
			if n++; n > 2 {
				p.unexpected(`"]"`)
			}
			continue
		case p.is(","):
			failAt(p.peek().line, "subscripts with commas are not supported")
		case p.skip("]"):
			if n == 0 && bounds[0] == nil {
				p.at--
				p.unexpected("an expression")
			}
			if n == 0 {
				return &item{x, bounds[0]}
			}
			return &slice{x, bounds}
		}
		if bounds[n] != nil {
			p.unexpected(`"]"`)
		}
		bounds[n] = p.expression()
	}
}
