package partition

import "github.com/gpupipe/gpupipe/pipeline/wire"

// Wire is the formats in which tensors travel between stages. Devices read and write them as f32, so that the formats
// change the bytes between stages, and not those on a device's Link.
type Wire struct {
	Activations wire.Format // and their gradients
	Exchange    wire.Format // gradients and weights of copies
}

// Sent is the bytes on the wire of the activation that enters a unit, or of its gradient.
func (p Problem) Sent(unit int) int64 { return p.Wire.Activations.Size(p.passes(unit) / 4) }

// sent is the bytes that a stage of the first replica sends per batch: activations, their gradients, and half of its
// exchange.
func (c *costs) sent(chunks []Chunk) (bytes int64) {
	if c.Schedule.Stages > 1 {
		for _, p := range chunks {
			bytes += int64(c.Schedule.Microbatches) * (c.Sent(p.First) + c.Sent(p.Last))
		}
	}
	return bytes + c.Wire.Exchange.Size(c.exchanged(chunks)/2/4)
}
