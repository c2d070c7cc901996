package weights_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
)

// New rows of the embedding and of the head, tied or not, are the mean of the file's. All else is as in the file.
func TestOpenExtended(t *testing.T) {
	for _, tied := range []bool{false, true} {
		c := traintest.Demo(t, t.TempDir())
		c.Model.TieEmbeddings = tied
		path := written(t, parameters(c))
		old, err := weights.Open(path, c.Model.Config)
		require.NoError(t, err)
		more := c.Model.Config
		more.VocabSize += 3
		s, err := weights.OpenExtended(path, more, c.Model.VocabSize)
		require.NoError(t, err)
		wide := 0
		for i, p := range more.Parameters() {
			x, err := s.Initial(p)
			require.NoError(t, err)
			require.Len(t, x, p.Type.Shape.Len(), p.Name)
			was, err := old.Initial(c.Model.Parameters()[i])
			require.NoError(t, err)
			assert.True(t, slices.Equal(was, x[:len(was)]), p.Name)
			if len(x) == len(was) {
				continue
			}
			wide++
			columns := p.Type.Shape[1]
			for at := len(was); at < len(x); at++ {
				sum := 0.0
				for row := range c.Model.VocabSize {
					sum += float64(was[row*columns+at%columns])
				}
				assert.InEpsilon(t, sum/float64(c.Model.VocabSize), float64(x[at]), 1e-6, p.Name)
			}
		}
		assert.Equal(t, map[bool]int{false: 2, true: 1}[tied], wide)
		require.NoError(t, s.Close())
		require.NoError(t, old.Close())
		_, err = weights.OpenExtended(path, c.Model.Config, 300)
		require.ErrorContains(t, err, "a vocabulary of 300, expected at most the model's 256")
	}
}
