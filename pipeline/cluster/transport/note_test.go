package transport

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEqualNotesAreDropped(t *testing.T) {
	t.Parallel()
	var noted []string
	n := notes{note: func(format string, args ...any) { noted = append(noted, fmt.Sprintf(format, args...)) }}
	for range 3 {
		n.add("100 %% of %s", "it")
		n.add("other")
	}
	assert.Equal(t, []string{"100 % of it", "other"}, noted)
	for i := range 3 * maxNotes {
		n.add("note %d", i)
		assert.LessOrEqual(t, len(n.last), maxNotes)
	}
	(&notes{}).add("without a log")
}
