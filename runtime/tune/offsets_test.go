package tune

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGroupsAreTimedWithEqualShares(t *testing.T) {
	var want []byte
	for _, x := range []byte{0, 3, 6, 10} {
		want = append(want, x, 0, 0, 0)
	}
	assert.Equal(t, want, offsets(3, 10))
}
