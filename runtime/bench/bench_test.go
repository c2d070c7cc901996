package bench_test

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/bench"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every case fits WebGPU's default limits, and reports what it should.
func TestRunOnNull(t *testing.T) {
	dev := null.New(null.Options{})
	var seen []string
	r, err := bench.Run(context.Background(), dev, bench.Options{Quick: true, Filter: regexp.MustCompile(`attention|512|adamw|entropy 2048|norm`),
		Progress: func(name string) { seen = append(seen, name) }})
	require.NoError(t, err)
	require.Len(t, seen, len(r.Results)+len(r.Steps))
	require.Len(t, r.Steps, 1)
	for _, x := range r.Results {
		assert.Positive(t, x.Micros, x.Name)
		assert.NotEmpty(t, x.Kernels, x.Name)
		assert.Equal(t, strings.HasPrefix(x.Name, "matmul"), x.Ratio > 0, x.Name)
		assert.True(t, x.GFLOPS > 0 || x.GBps > 0, x.Name)
	}
	s := r.Steps[0]
	assert.EqualValues(t, 869504, s.Parameters)
	assert.Equal(t, 2048, s.Tokens)
	require.NotEmpty(t, s.Kernels)
	count := 0
	for _, k := range s.Kernels {
		count += k.Count
	}
	assert.Greater(t, count, len(s.Kernels), "layers share kernels")
	assert.InEpsilon(t, 2048/s.Micros*1e6, s.TokensPerSec, 1e-9)
	live, _ := dev.Allocated()
	assert.Zero(t, live, "everything is released")

	var back bench.Report
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, r.Results, back.Results)

	var table strings.Builder
	require.NoError(t, r.Print(&table))
	assert.Contains(t, table.String(), "step tiny adamw: 869504 parameters")
}

func TestDispatch(t *testing.T) {
	dev := null.New(null.Options{})
	r, err := bench.Run(context.Background(), dev, bench.Options{Quick: true, Filter: regexp.MustCompile("^dispatch$")})
	require.NoError(t, err)
	require.Len(t, r.Results, 2)
	for _, x := range r.Results {
		assert.Positive(t, x.Micros, x.Name)
	}
	assert.GreaterOrEqual(t, r.Results[0].Micros, r.Results[1].Micros, "what the host does is part of the whole")
	live, _ := dev.Allocated()
	assert.Zero(t, live)
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := bench.Run(ctx, null.New(null.Options{}), bench.Options{})
	require.ErrorIs(t, err, context.Canceled)
}
