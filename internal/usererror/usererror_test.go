package usererror

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNew(t *testing.T) {
	assert.NoError(t, New(nil))
	cause := errors.New("no such file")
	err := New(cause)
	assert.True(t, Is(err))
	assert.ErrorIs(t, err, cause)
	assert.Equal(t, "no such file", err.Error())
	wrapped := fmt.Errorf("data.train: %w", err)
	assert.Equal(t, wrapped, New(wrapped), "marked already")
	assert.False(t, Is(cause))
	assert.True(t, Is(Errorf("line %d: %w", 3, cause)))
}
