package op

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph"
)

func (*AttentionOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, s := range attentionCases() {
		cs = append(cs, graph.Case{Op: new(AttentionOp), Inputs: s.inputs(), Tolerance: 1e-5, NoGrad: s.queries > 33})
	}
	for _, s := range []attentionShape{{2, 1, 37, 4, 2, 16}, {1, 3, 40, 3, 1, 20}, {2, 5, 9, 2, 2, 6}, {1, 1, 1100, 2, 1, 4}} {
		// Queries at the end of a cache that is not full.
		position := float64(s.keys - s.queries - 2)
		types := append(s.inputs(), graph.T(graph.U32, 1))
		cs = append(cs, graph.Case{Op: &AttentionOp{Form: FromPosition}, Inputs: types, Tolerance: 1e-5, NoGrad: true,
			Fill: func(i, j int) float64 {
				if i == 3 {
					return position
				}
				return scatter(i, j)
			}})
	}
	cs = append(cs, slottedAttentions()...)
	for _, s := range segmentedShapes() {
		for _, segments := range segmentations() {
			types := append(s.inputs(), graph.T(graph.U32, s.batch, s.keys))
			cs = append(cs, graph.Case{Op: &AttentionOp{Form: WithinSegments}, Inputs: types, Tolerance: 1e-5, NoGrad: s.queries > 33,
				Fill: func(i, j int) float64 {
					if i == 3 {
						return segments(j/s.keys, j%s.keys)
					}
					return scatter(i, j)
				}})
		}
	}
	for _, w := range windowedAttentions() {
		cs = append(cs, graph.Case{Op: &AttentionOp{Form: w.form, Window: w.window}, Inputs: w.inputs(), Tolerance: 1e-5,
			NoGrad: w.queries > 9 || w.operands != graph.F32 || w.form == FromPosition, Fill: w.fill})
	}
	for _, h := range float16Attentions() {
		cs = append(cs, graph.Case{Op: &AttentionOp{Form: h.form}, Inputs: h.inputs(), Tolerance: 1e-5, NoGrad: h.form == FromPosition,
			Fill: h.fill})
	}
	for _, h := range roundedAttentions() { // an error of f32 may round to the other neighbor
		unit := map[graph.DType]float64{graph.F16: 0x1p-10, graph.BF16: 0x1p-7}[h.operands]
		cs = append(cs, graph.Case{Op: &AttentionOp{Form: h.form, Result: h.operands}, Inputs: h.inputs(), Tolerance: unit, NoGrad: true,
			Fill: h.fill})
	}
	return cs
}

// attentionCases cover one and many rows, odd lengths, grouped queries, and head dimensions that are and are not
// multiples of 4. GPUs read one to four columns in an iteration, with one or several lanes a row.
func attentionCases() []attentionShape {
	return []attentionShape{
		{1, 1, 1, 1, 1, 4}, {2, 5, 5, 3, 1, 3}, {2, 33, 33, 4, 2, 16}, {1, 100, 100, 3, 1, 20}, {2, 128, 128, 2, 2, 32},
		{1, 70, 70, 2, 1, 64}, {1, 9, 9, 1, 1, 128}, {1, 19, 19, 2, 1, 256}, {1, 7, 12, 2, 1, 4}, {1, 12, 7, 2, 2, 4},
		{1, 100, 100, 2, 1, 4}, {1, 70, 70, 1, 1, 9}, {1, 33, 33, 1, 1, 11}, {1, 33, 33, 1, 1, 17}, {2, 40, 40, 2, 1, 44},
	}
}

// slottedAttentions cover sequences that read caches of their own, some the same one, at positions of their own, with
// and without a window; a slot that is out of range; and more keys than a stretch of the kernel for few queries.
func slottedAttentions() (cs []graph.Case) {
	slots, positions := []float64{2, 0, 2, 7}, []float64{3, 36, 0, 20}
	for _, s := range []attentionShape{{4, 1, 37, 4, 2, 16}, {2, 3, 40, 3, 1, 5}, {1, 1, 1100, 2, 1, 4}} {
		kv, list := graph.T(graph.F32, 3, s.keys, s.kvHeads, s.dim), graph.T(graph.U32, s.batch)
		for _, window := range []int{0, 5} {
			cs = append(cs, graph.Case{Op: &AttentionOp{Form: FromCaches, Window: window},
				Inputs: []graph.Type{s.inputs()[0], kv, kv, list, list}, Tolerance: 1e-5, NoGrad: true,
				Fill: func(i, j int) float64 {
					switch {
					case i == 3 && s.keys > 1000:
						return 1070
					case i == 3:
						return positions[j]
					case i == 4:
						return slots[j]
					}
					return scatter(i, j)
				}})
		}
	}
	return cs
}

// segmentedShapes cover how kernels read columns: vectors and scalars, several workgroups a head, grouped queries.
func segmentedShapes() []attentionShape {
	return []attentionShape{{2, 5, 5, 3, 1, 3}, {2, 33, 33, 4, 2, 8}, {1, 130, 130, 2, 2, 32}, {1, 70, 70, 2, 1, 64}, {1, 9, 9, 1, 1, 256}}
}

// segmentations give each position of a sequence a segment number: one segment; several, of a length that differs by
// sequence; segments of one token; numbers that occur again.
func segmentations() []func(sequence, place int) float64 {
	return []func(b, i int) float64{
		func(b, i int) float64 { return 3 },
		func(b, i int) float64 { return float64(i / (2 + 3*b)) },
		func(b, i int) float64 { return float64(1<<32 - 1 - i) },
		func(b, i int) float64 { return []float64{2, 2, 0, 0, 1}[(i/2+b)%5] },
	}
}

// inputs are the types of q, k and v.
func (s attentionShape) inputs() []graph.Type {
	kv := graph.T(graph.F32, s.batch, s.keys, s.kvHeads, s.dim)
	return []graph.Type{graph.T(graph.F32, s.batch, s.queries, s.heads, s.dim), kv, kv}
}

// scatter is a fixed number in [-1, 1) that looks random.
func scatter(i, j int) float64 {
	x := uint32(j)*2654435761 + uint32(i)*40503 + 12345
	x ^= x >> 15
	x *= 2246822519
	x ^= x >> 13
	return float64(x)/(1<<31) - 1
}

func (*AttentionGradOp) Cases() []graph.Case {
	var cs []graph.Case
	for _, w := range windowedAttentions() {
		if w.form != FromPosition {
			cs = append(cs, graph.Case{Op: &AttentionGradOp{Segments: w.form == WithinSegments, Window: w.window}, Inputs: w.gradInputs(),
				Tolerance: 2e-5, NoGrad: true, Fill: w.gradFill})
		}
	}
	for _, h := range float16Attentions() {
		if h.form != FromPosition {
			cs = append(cs, graph.Case{Op: &AttentionGradOp{Segments: h.form == WithinSegments}, Inputs: h.gradInputs(), Tolerance: 2e-5,
				NoGrad: true, Fill: h.gradFill})
		}
	}
	for _, h := range roundedAttentions() {
		if h.form != FromPosition {
			types := h.gradInputs()
			types[3] = types[0]
			cs = append(cs, graph.Case{Op: &AttentionGradOp{Segments: h.form == WithinSegments}, Inputs: types, Tolerance: 2e-5,
				NoGrad: true, Fill: h.gradFill})
		}
	}
	for n, s := range attentionCases() {
		types := s.inputs()
		lse := graph.T(graph.F32, s.batch, s.heads, s.queries)
		types = append(types, types[0], lse, types[0], lse)[:6+n%2]
		cs = append(cs, graph.Case{Op: new(AttentionGradOp), Inputs: types, Tolerance: 2e-5, NoGrad: true, Fill: gradScatter})
	}
	for n, s := range segmentedShapes() {
		for _, segments := range segmentations() {
			lse := graph.T(graph.F32, s.batch, s.heads, s.queries)
			types := s.inputs()
			types = append(append(types, types[0], lse, types[0], lse)[:6+n%2], graph.T(graph.U32, s.batch, s.keys))
			cs = append(cs, graph.Case{Op: &AttentionGradOp{Segments: true}, Inputs: types, Tolerance: 2e-5, NoGrad: true,
				Fill: func(i, j int) float64 {
					if i == len(types)-1 {
						return segments(j/s.keys, j%s.keys)
					}
					return gradScatter(i, j)
				}})
		}
	}
	return cs
}

// gradScatter is scatter, except that the logsumexps are larger, which keeps the probabilities moderate.
func gradScatter(i, j int) float64 {
	if i == 4 {
		return 4 + scatter(i, j)
	}
	return scatter(i, j)
}

// windowedAttention is a test case of attention with a window.
type windowedAttention struct {
	float16Attention
	window int
}

// fill fills as the case without a window does, except that segments are longer, and that their numbers occur again.
func (w windowedAttention) fill(i, j int) float64 {
	if i == 3 && w.form == WithinSegments {
		return float64(j % w.keys / 15 % 3)
	}
	return w.float16Attention.fill(i, j)
}

func (w windowedAttention) gradFill(i, j int) float64 {
	if i == 7 {
		return w.fill(3, j)
	}
	return gradScatter(i, j)
}

// windowedAttentions cover windows of one key, of less than, of exactly and of more than the blocks of queries and keys
// of the kernels, more and fewer keys than queries, odd head dimensions, and odd numbers of heads.
func windowedAttentions() []windowedAttention {
	f32 := func(s attentionShape, form AttentionForm, window int) windowedAttention {
		return windowedAttention{float16Attention{s, graph.F32, form}, window}
	}
	return []windowedAttention{
		f32(attentionShape{2, 5, 5, 3, 1, 3}, FromStart, 1), f32(attentionShape{1, 9, 9, 3, 3, 4}, FromStart, 4),
		f32(attentionShape{1, 130, 130, 2, 1, 8}, FromStart, 32), f32(attentionShape{1, 130, 130, 2, 1, 8}, FromStart, 65),
		f32(attentionShape{2, 70, 70, 3, 3, 11}, FromStart, 31), f32(attentionShape{1, 7, 12, 2, 1, 4}, FromStart, 2),
		f32(attentionShape{1, 12, 7, 2, 2, 4}, FromStart, 6), f32(attentionShape{1, 130, 130, 2, 1, 8}, WithinSegments, 40),
		f32(attentionShape{2, 1, 37, 4, 2, 16}, FromPosition, 5), f32(attentionShape{1, 3, 40, 3, 1, 5}, FromPosition, 1),
		f32(attentionShape{1, 1, 1100, 2, 1, 4}, FromPosition, 1050), f32(attentionShape{1, 40, 200, 1, 1, 4}, FromPosition, 60),
		{float16Attention{attentionShape{1, 70, 70, 2, 1, 4}, graph.F16, FromStart}, 33},
		{float16Attention{attentionShape{2, 70, 70, 2, 1, 16}, graph.BF16, WithinSegments}, 17},
		{float16Attention{attentionShape{1, 3, 40, 3, 1, 20}, graph.BF16, FromPosition}, 9},
		{float16Attention{attentionShape{1, 150, 150, 2, 1, 48}, graph.BF16, FromStart}, 65},
	}
}

// float16Attention is a test case of attention with 16-bit operands.
type float16Attention struct {
	attentionShape
	operands graph.DType
	form     AttentionForm // FromPosition: queries at the end of a cache that is not full
}

// float16Attentions cover even and odd numbers of 16-bit floats, head dimensions that are and are not multiples of 4,
// and the edge cases of kernels that multiply matrices: sequences of one and of several tiles, shorter and longer than
// a tile, and more and fewer keys than queries. Kernels with pairs of bf16 have tiles of 64.
func float16Attentions() []float16Attention {
	return []float16Attention{
		{attentionShape{1, 5, 5, 3, 1, 3}, graph.F16, FromStart}, {attentionShape{2, 9, 9, 2, 2, 4}, graph.BF16, FromStart},
		{attentionShape{2, 33, 33, 4, 2, 16}, graph.F16, FromStart}, {attentionShape{1, 130, 130, 2, 1, 16}, graph.BF16, FromStart},
		{attentionShape{1, 7, 70, 2, 1, 16}, graph.F16, FromStart}, {attentionShape{1, 50, 7, 2, 2, 16}, graph.F16, FromStart},
		{attentionShape{1, 3, 40, 3, 1, 20}, graph.BF16, FromPosition}, {attentionShape{1, 5, 9, 2, 1, 3}, graph.F16, FromPosition},
		{attentionShape{2, 70, 70, 2, 1, 16}, graph.F16, WithinSegments}, {attentionShape{1, 9, 9, 2, 2, 3}, graph.BF16, WithinSegments},
		{attentionShape{1, 136, 136, 3, 1, 64}, graph.BF16, FromStart}, {attentionShape{1, 7, 100, 2, 2, 128}, graph.BF16, FromStart},
		{attentionShape{1, 100, 41, 2, 1, 80}, graph.BF16, FromStart}, {attentionShape{2, 131, 131, 1, 1, 32}, graph.BF16, WithinSegments},
	}
}

// roundedAttentions are test cases whose results are 16-bit floats, too.
func roundedAttentions() []float16Attention {
	return []float16Attention{
		{attentionShape{2, 9, 9, 2, 2, 4}, graph.BF16, FromStart}, {attentionShape{1, 3, 40, 3, 1, 20}, graph.BF16, FromPosition},
		{attentionShape{1, 33, 33, 2, 2, 16}, graph.BF16, FromStart}, {attentionShape{2, 70, 70, 2, 1, 16}, graph.F16, WithinSegments},
	}
}

func (h float16Attention) inputs() []graph.Type {
	types := h.attentionShape.inputs()
	for i := range types {
		types[i].DType = h.operands
	}
	switch h.form {
	case FromPosition:
		return append(types, graph.T(graph.U32, 1))
	case WithinSegments:
		return append(types, graph.T(graph.U32, h.batch, h.keys))
	}
	return types
}

func (h float16Attention) fill(i, j int) float64 {
	switch {
	case i < 3:
		return scatter(i, j)
	case h.form == FromPosition:
		return float64(h.keys - h.queries - 2)
	}
	return segmentations()[1](j/h.keys, j%h.keys)
}

// gradInputs are the types of the gradient's inputs, including the gradient of logsumexp.
func (h float16Attention) gradInputs() []graph.Type {
	types := h.inputs()
	o, lse := types[0].Gradient(), graph.T(graph.F32, h.batch, h.heads, h.queries)
	return slices.Concat(types[:3], []graph.Type{o, lse, o, lse}, types[3:])
}

func (h float16Attention) gradFill(i, j int) float64 {
	if i == 7 {
		return h.fill(3, j)
	}
	return gradScatter(i, j)
}
