package train

import (
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/engine"
)

// suspectedBatch is a batch for which a module's loss is not finite.
type suspectedBatch struct {
	step int
	data engine.Batch
}

// microbatches are those of a batch, as an evaluation takes them.
type microbatches struct {
	whole engine.Batch
	n     int
}

// Batch returns one microbatch.
func (m microbatches) Batch(i int64) (engine.Batch, error) {
	one := engine.Batch{}
	for _, name := range []string{model.TokensInput, model.TargetsInput} {
		size := len(m.whole[name]) / m.n
		one[name] = m.whole[name][int(i)*size : (int(i)+1)*size]
	}
	return one, nil
}
