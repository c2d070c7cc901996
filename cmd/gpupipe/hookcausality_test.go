package main

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A model in which a mean over the row reaches each token is not causal, even if it is multiplied by what starts as
// zeros.
func TestCausal(t *testing.T) {
	for _, leaks := range []bool{false, true} {
		w, err := model.NewWritten(7, 6, func(batch int) (*model.Draft, error) {
			return graphhook.BuildModel(graphhook.Dims{Batch: batch, SeqLen: 6, Vocab: 7},
				func(b *graphhook.Builder) (x graphhook.Handle, err error) {
					do := func(h graphhook.Handle, e error) graphhook.Handle {
						if err == nil {
							err = e
						}
						return h
					}
					op := func(name, attributes string, in ...graphhook.Handle) graphhook.Handle {
						return do(b.Op(name, in, []byte(attributes)))
					}
					x = op("embedding", "", do(b.Parameter("e", []int{7, 4}, nil)), do(b.Input("tokens")))
					gate, from := do(b.Parameter("z", []int{4}, []byte(`{"init":"zeros"}`))), x
					if leaks {
						from = op("mean", `{"axes":[1],"keep":true}`, x)
					}
					x = op("add", "", x, op("mul", "", from, gate))
					return op("matmul", `{"trans_b":true}`, x, do(b.Parameter("o", []int{7, 4}, nil))), err
				})
		})
		require.NoError(t, err)
		if leaks {
			assert.ErrorContains(t, checkCausal(w), "it is not causal")
		} else {
			assert.NoError(t, checkCausal(w))
		}
	}
}
