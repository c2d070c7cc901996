package printable_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/stretchr/testify/assert"
)

func TestList(t *testing.T) {
	assert.Equal(t, "2, 4", printable.List([]int{2, 4}))
	assert.Empty(t, printable.List[string](nil))
}

func TestText(t *testing.T) {
	assert.Equal(t, "Größe 7 µs", printable.Text("Größe 7 µs"))
	assert.Equal(t, "�[2Jx�y", printable.Text("\x1b[2Jx\ny"))
}
