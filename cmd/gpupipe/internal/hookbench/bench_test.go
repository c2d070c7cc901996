package hookbench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	r, err := Run(context.Background(), time.Millisecond)
	require.NoError(t, err)
	assert.Positive(t, r.Call)
	assert.Greater(t, r.RoundTrip, r.Call, "8 MiB are copied")
}
