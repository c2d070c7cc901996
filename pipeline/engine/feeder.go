package engine

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
)

// feeder gives one rank the data of its microbatches. It keeps the batch that it has read last.
type feeder struct {
	work    *work
	inputs  model.Inputs
	replica int
	number  int // of batch
	batch   Batch
}

// data is the part of a variable's data that belongs to a microbatch of the replica; nil for a variable that the work
// does not read.
func (f *feeder) data(batch, microbatch int, v graph.Named) ([]byte, error) {
	if f.number != batch || f.batch == nil {
		b, err := f.work.source.Batch(int64(batch))
		if err != nil {
			return nil, err
		}
		f.number, f.batch = batch, b
	}
	if f.work.evaluates && !f.inputs.EvaluationReads(v.ID) {
		return nil, nil
	}
	size, all := int(v.Type.Bytes()), f.batch[v.ID]
	if n := f.work.replicas * f.work.microbatches; len(all) != n*size {
		return nil, fmt.Errorf("batch %d has %d bytes of %q, expected %d: %v for each of %d microbatches", batch, len(all), v.ID, n*size,
			v.Type, n)
	}
	at := (f.replica*f.work.microbatches + microbatch) * size
	return all[at : at+size], nil
}
