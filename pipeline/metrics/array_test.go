package metrics

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArrays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "experts.jsonl")
	l, err := Create(path)
	require.NoError(t, err)
	require.NoError(t, l.AppendArrays(1, Array{"layers.1/loads", []float64{3, 0, 5}}, Array{"layers.2/loads", nil}))
	require.NoError(t, l.AppendArrays(2, Array{"layers.1/loads", []float64{4, 4}}))
	assert.ErrorContains(t, l.AppendArrays(3, Array{"a", nil}, Array{"a", nil}), `"a" is given twice`)
	require.NoError(t, l.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, `{"step":1,"layers.1/loads":[3,0,5],"layers.2/loads":[]}`+"\n"+`{"step":2,"layers.1/loads":[4,4]}`+"\n", string(text))
	l, err = Resume(path, 1)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, `{"step":1,"layers.1/loads":[3,0,5],"layers.2/loads":[]}`+"\n", string(text))
}
