package graph

import (
	"cmp"
	"fmt"
	"slices"
)

// Section is consecutive entries of a variable along its first axis, From up to but without To. Programs read and
// assign it as if it were a variable of its own, which lies in the memory of the whole. A graph uses a variable as a
// whole or by sections that do not overlap.
type Section struct {
	Named
	Of   Named `json:"of"` // the whole
	From int   `json:"from"`
	To   int   `json:"to"`
}

// Name is the kind of source.
func (*Section) Name() string { return "section" }

// Offset is the number of elements of the whole before the section.
func (s *Section) Offset() int { return s.From * s.Of.Type.Shape[1:].Len() }

// Infer checks that the section lies within the whole.
func (s *Section) Infer(in []Type) ([]Type, error) {
	whole := s.Of.Type.Shape
	if len(whole) == 0 || s.From < 0 || s.From >= s.To || s.To > whole[0] {
		return nil, fmt.Errorf("section %d:%d of %q, which is %v", s.From, s.To, s.Of.ID, s.Of.Type)
	}
	return s.Named.Infer(in)
}

func newSection(of Named, from, to int) *Section {
	shape := of.Type.Shape.Clone()
	shape[0] = to - from
	return &Section{Named{fmt.Sprintf("%s[%d:%d]", of.ID, from, to), Type{of.Type.DType, shape}}, of, from, to}
}

// Section is the entries of a variable from one up to but without another, along its first axis.
func (b *Builder) Section(name string, t Type, from, to int) *Value {
	if len(t.Shape) == 0 {
		b.Fail("section", "%q is %v, which has no axis", name, t)
	}
	return b.source(newSection(Named{name, t}, from, to))
}

// checkUse refuses a source that would overlap another one of the graph, and notes sections.
func (b *Builder) checkUse(s Source) {
	fail := func(other *Section) {
		b.Fail(s.Name(), "%q of %v overlaps %q of %v", s.Label(), s.Declared(), other.ID, other.Of.Type)
	}
	switch s := s.(type) {
	case *Variable:
		if used := b.sections[s.ID]; len(used) > 0 {
			fail(used[0])
		}
	case *Section:
		if whole := b.named["variable "+s.Of.ID]; whole != nil {
			b.Fail(s.Name(), "%q overlaps its variable, which the graph uses as a whole", s.ID)
		}
		used := b.sections[s.Of.ID]
		at, _ := slices.BinarySearchFunc(used, s.From, func(x *Section, from int) int { return cmp.Compare(x.From, from) })
		for i := max(0, at-1); i < min(at+1, len(used)); i++ {
			if x := used[i]; x.From < s.To && s.From < x.To || !x.Of.Type.Equal(s.Of.Type) {
				fail(x)
			}
		}
		b.sections[s.Of.ID] = slices.Insert(used, at, s)
	}
}

// Whole returns the variable in whose memory a source lies, and the element at which it begins: for a Section the
// whole, for all other sources themselves.
func Whole(s Source) (whole Named, offset int) {
	if x, ok := s.(*Section); ok {
		return x.Of, x.Offset()
	}
	return Named{s.Label(), s.Declared()}, 0
}

// Variables lists the variables of the graph, each once. It includes the variables that sections belong to.
func (g *Graph) Variables() (vs []Named) {
	seen := map[string]bool{}
	for _, n := range g.Nodes {
		switch s := n.Op.(type) {
		case *Variable, *Section:
			if whole, _ := Whole(s.(Source)); !seen[whole.ID] {
				seen[whole.ID] = true
				vs = append(vs, whole)
			}
		}
	}
	return vs
}
