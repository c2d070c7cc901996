package train

import "github.com/gpupipe/gpupipe/pipeline/engine"

// suspectedBatch is a batch for which a module's loss is not finite.
type suspectedBatch struct {
	step int
	data engine.Batch
}

// microbatches makes each microbatch of a batch a batch of an evaluation.
type microbatches struct {
	whole engine.Batch
	n     int
}

// Batch returns one microbatch.
func (m microbatches) Batch(i int64) (engine.Batch, error) {
	one := engine.Batch{}
	for name, data := range m.whole {
		size := len(data) / m.n
		one[name] = data[int(i)*size : (int(i)+1)*size]
	}
	return one, nil
}
