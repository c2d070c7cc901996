package meter

import "slices"

// survey is the first walk over a body: it checks what the rewriter relies on. It finds where which cost is paid, how
// high the stack becomes, and how much work it is to compile the body.
type survey struct {
	*body
	frames   []frame
	operands int // on the stack
	loops    int // around
	at       int // where the straight-line code began
	pays     int // its payment
	own      bool
	cost     int64
	effort   effort
}

// frame is an open block.
type frame struct {
	pays     int // the payment of the loop that it lies in (0: the function's)
	operands int // below its own
	typ      funcType
	loop     bool
	dead     bool // the next instructions are never reached
}

func (b *body) survey() {
	s := &survey{body: b, effort: effort{body: b}}
	s.open(b.start)
	s.cost = int64(b.locals / 8) // they begin as zeros
	s.enter(0, funcType{results: b.types[b.typ].results})
	labels := 0
	for len(s.frames) > 0 {
		op, in := b.opcode()
		b.immediate(op, in, len(s.frames), &labels)
		s.cost += in.cost
		s.push(in.adds)
		s.effort.instruction(op, s.operands, s.loops)
		s.flow(op, in.imm)
	}
	s.close()
	b.end()
	s.effort.end()
	slices.SortFunc(b.payings, func(x, y payment) int { return x.at - y.at })
}

// flow follows what calls, branches, or begins or ends a block.
func (s *survey) flow(op int, imm immediate) {
	switch imm {
	case immFunc:
		if op != opRefFunc {
			s.call(s.types[s.functions[s.target]])
		}
	case immIndirect:
		s.call(s.types[s.target])
	case immLabel, immLabels:
		s.carry(s.arity(s.target), s.targets)
	}
	switch op {
	case opBlock:
		s.enter(s.top().pays, s.block)
	case opLoop:
		s.close()
		s.enter(len(s.payings), s.block)
		s.top().loop = true
		s.loops++
		s.open(s.i)
	case opIf:
		s.enter(s.top().pays, s.block)
		s.nextStraightLine()
	case opElse:
		s.leave()
		s.top().dead = false
		s.push(len(s.top().typ.params))
		s.nextStraightLine()
	case opEnd:
		s.leave()
		results := len(s.top().typ.results)
		if s.top().loop {
			s.loops--
		}
		if s.frames = s.frames[:len(s.frames)-1]; len(s.frames) > 0 {
			s.push(results)
			s.nextStraightLine()
		}
	case opBrIf:
		s.nextStraightLine()
	case opCall, opCallIndirect:
		s.calls = true
	case opBr, opBrTable, opReturn, opUnreachable, opReturnCall, opReturnCallIndirect:
		s.top().dead, s.operands = true, s.top().operands
		s.nextStraightLine()
	}
}

func (s *survey) top() *frame { return &s.frames[len(s.frames)-1] }

// push puts operands on the stack, or takes them off.
func (s *survey) push(n int) {
	s.operands += n
	if low := s.top().operands; s.operands < low {
		if !s.top().dead {
			s.refuse("an instruction has too few operands")
		}
		s.operands = low
	}
	s.height = max(s.height, s.operands)
}

func (s *survey) enter(pays int, typ funcType) {
	if len(s.frames) > 0 {
		s.push(-len(typ.params))
	}
	s.frames = append(s.frames, frame{pays: pays, operands: s.operands, typ: typ})
	s.push(len(typ.params))
	s.carry(len(typ.params)+len(typ.results), 1)
}

// leave ends a block, or its first half.
func (s *survey) leave() {
	f := s.top()
	if n := s.operands - f.operands; n != len(f.typ.results) && !f.dead {
		s.refuse("found %d operands at the end of a block, expected %d", n, len(f.typ.results))
	}
	s.operands = f.operands
}

func (s *survey) call(f funcType) {
	s.push(-len(f.params))
	s.push(len(f.results))
	s.cost += int64(len(f.params)+len(f.results)) / 4
	s.effort.values(len(f.params) + 4*len(f.results))
}

// arity is how many operands a branch takes along.
func (s *survey) arity(label uint32) int {
	f := s.frames[len(s.frames)-1-int(label)]
	if f.loop {
		return len(f.typ.params)
	}
	return len(f.typ.results)
}

// carry takes operands along to a number of places.
func (s *survey) carry(operands, places int) {
	s.cost += int64(operands) / 4
	s.effort.values(4 * operands * places)
}

// open begins a loop or function.
func (s *survey) open(at int) {
	s.payings = append(s.payings, payment{at: at, check: true})
	s.at, s.pays, s.own, s.cost = at, len(s.payings)-1, true, 0
}

// nextStraightLine ends straight-line code and begins the next.
func (s *survey) nextStraightLine() {
	s.close()
	s.at, s.pays, s.own, s.cost = s.i, s.top().pays, false, 0
}

// close decides where straight-line code is paid for: at its loop or function if it is short or comes first there, else
// at itself.
func (s *survey) close() {
	if s.own || s.cost < StraightLine {
		s.payings[s.pays].cost += s.cost
	} else {
		s.payings = append(s.payings, payment{at: s.at, cost: s.cost})
	}
}
