package fielderror

import (
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestError(t *testing.T) {
	err := New("d_model", 130, "a multiple of n_heads (%d)", 4)
	assert.EqualError(t, err, "d_model: found 130, expected a multiple of n_heads (4)")
	assert.EqualError(t, In("model", err), "model.d_model: found 130, expected a multiple of n_heads (4)")
	assert.EqualError(t, err, "d_model: found 130, expected a multiple of n_heads (4)", "In changed its argument")
	cause := Wrap("train", io.EOF)
	assert.EqualError(t, In("data", cause), "data.train: EOF")
	assert.ErrorIs(t, In("data", cause), io.EOF)
	assert.NoError(t, Wrap("train", nil))
	other := errors.New("another")
	assert.Equal(t, other, In("data", other))
	assert.NoError(t, In("data", nil))
}

func TestText(t *testing.T) {
	for want, x := range map[string]any{
		`"a b"`: "a b", `["a" "b"]`: []string{"a", "b"}, "[1 2]": []int{1, 2}, `{"k":1}`: json.RawMessage(`{"k":1}`), "0": 0.0,
		"12345678": 12345678.0, "1e+300": 1e300, "0.0001": 1e-4, "-1e-09": -1e-9, "true": true,
	} {
		assert.Equal(t, want, Text(x))
	}
}
