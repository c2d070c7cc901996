package train_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/stretchr/testify/assert"
)

// The batches of evaluations and the losses of models mean the same positions.
func TestPositionsThatPredictNothing(t *testing.T) {
	target := int32(data.NotPredicted)
	assert.Equal(t, uint32(model.NoTarget), uint32(target))
}
