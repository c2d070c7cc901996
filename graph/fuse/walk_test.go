package fuse

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInnerNames(t *testing.T) {
	for expr, want := range map[string]bool{"i * 5u + col": true, "c3": true, "2u + c12 * 3u": true, "c": false, "cols": false, "c3x": false, "row": false, "x_c3": false} {
		assert.Equal(t, want, isInner(expr), expr)
	}
}
