package config

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/wire"
)

// Wire is how tensors travel between ranks. Its fields are keys of the section pipeline.
type Wire struct {
	Activations string `yaml:"wire" help:"Format of activations and their gradients between stages, in-process ones too: f32 is exact, bf16 takes half of the bytes, int8 a quarter. It changes the bits of a run."`
	Exchange    string `yaml:"wire_exchange" help:"Format in which stages exchange gradients and weights of parameters that several hold: tied embeddings, replicas. The owner's weights stay exact; copies are rounded."`
}

// exchangeFormats are the values of pipeline.wire_exchange: formats that do not round at random. A copy of a parameter
// then follows from the owner's weights alone.
func exchangeFormats() []string { return []string{wire.F32.String(), wire.BF16.String()} }

func (w Wire) validate() error {
	if err := oneOf("pipeline.wire", w.Activations); err != nil {
		return err
	}
	return oneOf("pipeline.wire_exchange", w.Exchange)
}

// Formats are the formats of activations and of exchanges.
func (w Wire) Formats() (activations, exchange wire.Format) {
	return format(w.Activations), format(w.Exchange)
}

func format(name string) wire.Format {
	f, err := wire.Parse(name)
	if err != nil {
		panic(err) // of a config that was not validated
	}
	return f
}

// Describe names the formats; empty if all tensors travel as they are.
func (w Wire) Describe() string {
	if w.Exact() {
		return ""
	}
	return fmt.Sprintf("activations and their gradients in %s, weights and gradients of copies in %s", w.Activations, w.Exchange)
}

// Exact reports whether all tensors travel as they are. If not, the bits of a run depend on the cut.
func (w Wire) Exact() bool { return w == Wire{wire.F32.String(), wire.F32.String()} }
