package graph

import "math/rand/v2"

// Values makes the inputs of a case: the same ones for the same seed, and each a value of its dtype, so that a device
// and the reference start from the same numbers.
func (c Case) Values(seed uint64) []*Tensor {
	low, high := -2.0, 2.0
	if c.Low != c.High {
		low, high = c.Low, c.High
	}
	r := rand.New(rand.NewPCG(seed, 1))
	in := make([]*Tensor, len(c.Inputs))
	for i, t := range c.Inputs {
		in[i] = NewTensor(t)
		for j := range in[i].Data {
			var x float64
			switch {
			case c.Fill != nil:
				x = c.Fill(i, j)
			case t.DType.Float():
				x = low + (high-low)*r.Float64()
			default:
				x = float64(r.IntN(4))
			}
			in[i].Data[j] = t.DType.Round(x)
		}
	}
	return in
}
