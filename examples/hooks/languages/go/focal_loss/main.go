//go:build wasip1

// Focal loss (arXiv 1708.02002, equation 4) with the z-loss of PaLM (arXiv 2204.02311, section 5): for each token
//
//	(1 − p)^γ · (−log p) + z · (log Σ e^logits)²,  p the target's probability
//
// Config: gamma (2), z (1e-4).
package main

import (
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/buildloss"
)

func init() { buildloss.Use(loss) }

func loss(logits, targets gpupipe.Value) gpupipe.Value {
	gamma, z := gpupipe.Config().Number("gamma", 2), gpupipe.Config().Number("z", 1e-4)
	lse := logits.LogSumExp()
	nll := lse.Sub(logits.Pick(targets)) // −log p
	miss := nll.Neg().Exp().Neg().Shift(1)
	focus := miss.Square
	if gamma != 2 {
		focus = func() gpupipe.Value { return miss.Maximum(gpupipe.Number(1e-12)).Pow(gpupipe.Number(gamma)) }
	}
	return focus().Mul(nll).Add(lse.Square().Scale(z))
}

func main() {}
