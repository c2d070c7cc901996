package replicas

import "github.com/gpupipe/gpupipe/graph/model"

// Blocks are the sizes of a model's fragments, in blocks of outer.BlockSize.
func Blocks(m model.Model) (blocks []int) {
	for _, f := range fragmentsOf(m) {
		blocks = append(blocks, f.blocks)
	}
	return blocks
}
