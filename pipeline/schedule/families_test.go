package schedule

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every row of the table is complete: it has one generator, a closed form with its microbatches in flight, and an
// example that New accepts and that has the row's delay.
func TestFamiliesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Families() {
		assert.False(t, seen[f.Name], "%s is listed twice", f.Name)
		seen[f.Name] = true
		assert.NotEmpty(t, f.Summary, f.Name)
		assert.Equal(t, f.batch == nil, f.stream != nil, "%s has one generator", f.Name)
		assert.Equal(t, f.closed == nil, f.inFlight == nil, "%s has a closed form, or not", f.Name)
		assert.Equal(t, f.Delay < 0 || f.Name == Eval, f.Untrainable != "", f.Name)
		s, err := Generate(f.Name, f.Example(Options{}))
		require.NoError(t, err)
		assert.Equal(t, f.Delay, s.Delay)
		_, err = Validate(s)
		require.NoError(t, err)
	}
	for delay := range 2 {
		f, ok := Find(ForDelay(delay))
		require.True(t, ok)
		assert.Equal(t, delay, f.Delay)
	}
	_, ok := Find("3bw")
	assert.False(t, ok)
}
