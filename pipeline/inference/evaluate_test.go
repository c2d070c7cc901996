package inference

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEvaluateReportsDamage(t *testing.T) {
	dir := trained(t)
	require.NoError(t, os.Truncate(filepath.Join(dir, "checkpoints/step-6/model.safetensors"), 100))
	n := &runtest.Notes{}
	o := EvalOptions{From: dir, BatchSize: 2, Target: onReference, Note: n.Note}
	e, err := Evaluate(context.Background(), o)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "checkpoints/step-4"), e.Model)
	require.Len(t, n.Text, 1)
	assert.Contains(t, n.Text[0], "step-6 is damaged")

	o.Target.Execute = (&traintest.Reference{NaNEvaluations: true}).Execute
	_, err = Evaluate(context.Background(), o)
	var user *usererror.Error
	assert.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "is NaN: the model's weights")
	o.Data = []string{"none.txt"}
	_, err = Evaluate(context.Background(), o)
	assert.ErrorContains(t, err, "--data: none.txt: no such file")
}
