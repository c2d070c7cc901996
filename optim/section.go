package optim

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

// section is the matrices of a parameter that are updated together: consecutive ones of a stack, or all. Weights,
// gradients and state of a section are used as sections of their variables, each in the memory of the whole. So a large
// stack needs temporary memory for one section only, and the weights of each section are replaced in place.
type section struct {
	param    Param
	from, to int // of a stack; 0, 0: all
}

// all is the only section of a parameter.
func all(p Param) section { return section{param: p} }

// batching is a Rule that computes matrices in batches, and bounds the bytes of one.
type batching interface{ batchBytes() int64 }

// sectionAlignment is a multiple of every device's alignment of bindings, in bytes.
const sectionAlignment = 256

// sections divides a parameter for a rule. All sections but the last are of equal size.
func (o *Optimizer) sections(rule Rule, p Param) (ss []section) {
	b, ok := rule.(batching)
	if !ok || !p.stacked() {
		return []section{all(p)}
	}
	stack, _ := p.matrices()
	n, limit := int64(stack[0]), b.batchBytes()
	largest, aligned := int64(0), int64(1) // aligned: matrices after which a section of each variable may begin
	for _, s := range slices.Concat(o.ruleState(rule, p), o.correctionState(p), kinds(p, "weights")) {
		largest = max(largest, s.Type.Bytes())
		each := int64(s.Type.Shape[1:].Len() * s.Type.DType.Size())
		for aligned*each%sectionAlignment != 0 {
			aligned *= 2
		}
	}
	count := min(n, (largest+limit-1)/limit)
	size := min((n+count-1)/count, max(1, limit*n/largest))
	size = max(aligned, size/aligned*aligned)
	if size >= n {
		return []section{all(p)}
	}
	for from := int64(0); from < n; from += size {
		ss = append(ss, section{p, int(from), int(min(from+size, n))})
	}
	return ss
}

// whole reports whether the section is all of the parameter.
func (s section) whole() bool { return s.to == 0 }

// variable is the section's share of one of the parameter's variables.
func (s section) variable(b *graph.Builder, name string, whole graph.Type) *graph.Value {
	if s.whole() {
		return b.Variable(name, whole)
	}
	return b.Section(name, whole, s.from, s.to)
}

// sectionSets divides the sections of parameters under a rule into sets that are updated at once: the matrices that may
// share a batch, and each section of a stack by itself, so that its temporary values are gone before the next section
// computes its own.
func (o *Optimizer) sectionSets(rule Rule, params []Param) (out [][]section) {
	var shared []section
	var single [][]section
	for _, p := range params {
		if !p.stacked() {
			shared = append(shared, all(p))
			continue
		}
		for _, s := range o.sections(rule, p) {
			single = append(single, []section{s})
		}
	}
	if len(shared) > 0 {
		out = [][]section{shared}
	}
	return append(out, single...)
}
