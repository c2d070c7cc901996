package jinja

// loopState is where a loop is; templates see it as "loop".
type loopState struct {
	items   []any
	at      int
	depth   int
	changed []any // the last arguments of changed
	seen    bool  // changed was called
	again   func(m *machine, over any) any
}

func (s *forTag) exec(f *frame) jump {
	return s.run(f, f.eval(s.over), 0)
}

// run executes the body for each value, with the depth of a recursive loop.
func (s *forTag) run(f *frame, over any, depth int) jump {
	items := f.m.items(over)
	if s.test != nil {
		kept := []any{}
		for _, v := range items {
			inner := f.inner()
			s.target.assign(inner, v)
			inner.set("loop", undef("'loop' is undefined"))
			if truth(inner.eval(s.test)) {
				kept = append(kept, v)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		return f.inner().run(s.otherwise)
	}
	l := &loopState{items: items, depth: depth}
	if s.recursive {
		l.again = func(m *machine, over any) any {
			inner := f.inner()
			return inner.recurse(s, over, depth+1)
		}
	}
	loop := l.object()
	for i, v := range items {
		l.at = i
		inner := f.inner()
		inner.set("loop", loop)
		s.target.assign(inner, v)
		if inner.run(s.body) == "break" {
			break
		}
	}
	return none
}

// recurse returns what a recursive loop writes.
func (f *frame) recurse(s *forTag, over any, depth int) string {
	return f.capture([]statement{recursion{s, over, depth}})
}

type recursion struct {
	loop  *forTag
	over  any
	depth int
}

func (r recursion) exec(f *frame) jump { return r.loop.run(f, r.over, r.depth) }

func (l *loopState) object() *object {
	o := &object{name: "LoopContext", attr: l.attr}
	o.call = func(m *machine, a args) any {
		if l.again == nil {
			fail("the loop must have the 'recursive' marker to be called recursively")
		}
		return l.again(m, a.bind("loop", 1, "iterable")[0])
	}
	return o
}

func (l *loopState) attr(name string) (any, bool) {
	n, i := int64(len(l.items)), int64(l.at)
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if i == 0 {
			return undef("there is no previous item"), true
		}
		return l.items[i-1], true
	case "nextitem":
		if i == n-1 {
			return undef("there is no next item"), true
		}
		return l.items[i+1], true
	case "cycle":
		return &function{func(m *machine, a args) any {
			if len(a.pos) == 0 {
				fail("no items for cycling given")
			}
			return a.pos[l.at%len(a.pos)]
		}}, true
	case "changed":
		return &function{func(m *machine, a args) any {
			if l.seen && m.equalItems(l.changed, a.pos) {
				return false
			}
			l.seen, l.changed = true, a.pos
			return true
		}}, true
	}
	return nil, false
}
