package train

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestStepsWithLoads(t *testing.T) {
	recorded := func(steps int) (n int) {
		for step := 1; step <= steps; step++ {
			if recordsLoads(step, steps) {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 255, recorded(255))
	assert.Equal(t, 255+128+2, recorded(513))
	assert.Equal(t, 1467, recorded(190735))
}
