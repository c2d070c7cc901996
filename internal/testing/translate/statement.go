package translate

func (p *parser) block() []*stmt {
	p.expect("{")
	var out []*stmt
	for !p.accept("}") {
		if s := p.statement(); s != nil {
			out = append(out, s)
		}
	}
	return out
}

func (p *parser) statement() *stmt {
	p.enter()
	defer p.leave()
	t := p.peek()
	s := &stmt{line: t.line}
	switch {
	case p.accept(";"):
		return nil
	case p.is("{"):
		s.kind, s.body = block, p.block()
	case p.accept("if"):
		s.kind, s.expr, s.body = branch, p.expression(), p.block()
		if p.accept("else") {
			if p.is("if") {
				s.rest = []*stmt{p.statement()}
			} else {
				s.rest = p.block()
			}
		}
	case p.accept("for"):
		p.forLoop(s)
	case p.accept("while"):
		s.kind, s.expr, s.body = loop, p.expression(), p.block()
	case p.accept("loop"):
		s.kind, s.body = loop, p.block()
	case p.accept("return"):
		s.kind = returns
		if !p.is(";") {
			s.expr = p.expression()
		}
		p.expect(";")
	case p.accept("break"):
		s.kind = breaks
		p.expect(";")
	case p.accept("continue"):
		s.kind = continues
		p.expect(";")
	default:
		s = p.simple()
		p.expect(";")
	}
	return s
}

func (p *parser) forLoop(s *stmt) {
	s.kind = loop
	p.expect("(")
	if !p.accept(";") {
		if s.init = p.simple(); s.init.kind != declareVar && s.init.kind != assign {
			fail(s.line, "a for loop begins with a declaration by var or an assignment")
		}
		p.expect(";")
	}
	if !p.is(";") {
		s.expr = p.expression()
	}
	p.expect(";")
	if !p.is(")") {
		if s.next = p.simple(); s.next.kind != assign {
			fail(s.line, "a turn of a for loop ends with an assignment")
		}
	}
	p.expect(")")
	s.body = p.block()
}

// simple reads a declaration, an assignment or a call.
func (p *parser) simple() *stmt {
	t := p.peek()
	s := &stmt{line: t.line}
	if t.text == "let" || t.text == "var" || t.text == "const" {
		p.next()
		s.kind = declareLet
		if t.text == "var" {
			s.kind = declareVar
		}
		s.text = p.name()
		if p.accept(":") {
			s.typ = p.typ()
		}
		if p.accept("=") {
			s.expr = p.expression()
		} else if s.typ == nil || s.kind == declareLet {
			fail(t.line, "%s has no value", s.text)
		}
		return s
	}
	left := p.unary()
	op := p.next()
	switch op.text {
	case "++", "--":
		s.kind, s.left, s.text = assign, left, op.text[:1]+"="
		s.expr = &expr{kind: literal, text: "1", line: op.line}
	case "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=":
		s.kind, s.left, s.text, s.expr = assign, left, op.text, p.expression()
	default:
		p.at--
		if left.kind != call {
			fail(t.line, "expected a statement, found %q", t.text)
		}
		s.kind, s.expr = evaluate, left
	}
	return s
}
