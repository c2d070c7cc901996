package engine

import (
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/wire"
)

// Wire is how tensors travel between ranks, wherever these are. Losses, loss scales, gradient norms, balancing biases
// and the loads of experts always travel exactly.
type Wire struct {
	Activations wire.Format // of activations and their gradients
	// Exchange is the format of exchanges: gradients of copies, and the weights sent back. It is F32 or BF16, which
	// rounds a tensor always to the same bits. A copy then is the rounding of the owner's weights, which stay exact.
	Exchange wire.Format
	Seed     uint64 // of random rounding
}

func (w Wire) check() error {
	if w.Exchange != wire.F32 && w.Exchange != wire.BF16 {
		return fielderror.New("wire_exchange", w.Exchange, "one of %v, %v", wire.F32, wire.BF16)
	}
	return nil
}

// The kinds of wire.Position. They never change: bits depend on them.
const (
	trainedActivation   = 0
	activationGradient  = 1
	evaluatedActivation = 2
)

// encoding is how the tensors of one message are written on the way.
type encoding struct {
	formats []wire.Format // by tensor; nil: all are sent as they are
	key     wire.Key
	buffers *wire.Pool
}

// encoding is the encoding of a message to a rank.
func (e *Engine) encoding(m stage.Message, to int, evaluates bool) encoding {
	o, formats := e.options, []wire.Format(nil)
	position := wire.Position{Seed: o.Wire.Seed, Batch: m.Batch, Microbatch: m.From/o.Layout.Stages*o.Microbatches + m.Microbatch,
		VirtualStage: m.VirtualStage}
	switch m.Kind {
	case stage.Activation, stage.Gradient:
		formats = sharedFormats([]wire.Format{o.Wire.Activations})
		switch {
		case m.Kind == stage.Gradient:
			position.Kind = activationGradient
		case evaluates:
			position.Kind = evaluatedActivation
		}
	case stage.Contribution:
		formats = o.exchangeFormats(e.exchanges.between(m.From, to).gradients)
	case stage.Weights:
		formats = o.exchangeFormats(e.exchanges.between(to, m.From).params)
	}
	return encoding{formats, position.Key(), &e.buffers}
}

// exchangeFormats are the formats of the variables of an exchange.
func (o Options) exchangeFormats(variables []string) []wire.Format {
	formats, exact := make([]wire.Format, len(variables)), o.exact()
	for i, name := range variables {
		if !slices.Contains(exact, name) {
			formats[i] = o.Wire.Exchange
		}
	}
	return sharedFormats(formats)
}

// exact lists the variables of exchanges that travel exactly.
func (o Options) exact() []string {
	names := []string{model.LossVariable, optim.ScaleVariable}
	for _, p := range o.Model.Parameters() {
		if p.Role == model.BalancingBias {
			names = append(append(names, p.Name), o.Model.Gradients(p.Name)...)
		}
	}
	return names
}

// sharedFormats is nil instead of formats that are all F32.
func sharedFormats(formats []wire.Format) []wire.Format {
	if slices.ContainsFunc(formats, func(f wire.Format) bool { return f != wire.F32 }) {
		return formats
	}
	return nil
}

// encode encodes a payload.
func (c encoding) encode(payload [][]byte) [][]byte {
	if c.formats == nil {
		return payload
	}
	encoded := slices.Clone(payload)
	for i, f := range c.formats {
		if f != wire.F32 {
			encoded[i] = c.buffers.Get(int(f.Size(int64(len(payload[i]) / 4))))
			f.Encode(encoded[i], payload[i], c.key)
		}
	}
	return encoded
}

// decode decodes a payload. The caller releases the result.
func (c encoding) decode(payload [][]byte) ([][]byte, error) {
	if c.formats == nil {
		return payload, nil
	}
	decoded := slices.Clone(payload)
	for i, f := range c.formats {
		if f == wire.F32 {
			continue
		}
		n, err := f.Elements(int64(len(payload[i])))
		if err != nil {
			return nil, err
		}
		decoded[i] = c.buffers.Get(int(4 * n))
		if err := f.Decode(decoded[i], payload[i]); err != nil {
			return nil, err
		}
	}
	return decoded, nil
}

// release takes back the buffers of a payload that encode or decode has returned. Nothing may use them any more.
func (c encoding) release(payload [][]byte) {
	for i, f := range c.formats {
		if f != wire.F32 {
			c.buffers.Put(payload[i])
		}
	}
}

// copied is the weights that a copy of a parameter has: the owner's, as an exchange would bring them.
func (w Wire) copied(weights []byte) []byte {
	if w.Exchange == wire.F32 {
		return weights
	}
	data, rounded := make([]byte, w.Exchange.Size(int64(len(weights)/4))), make([]byte, len(weights))
	w.Exchange.Encode(data, weights, 0)
	if err := w.Exchange.Decode(rounded, data); err != nil {
		panic(err) // of what was just encoded
	}
	return rounded
}
