package wasm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A module of Go's own compiler gets the functions that its runtime needs, and no access to this machine.
func TestGoGuest(t *testing.T) {
	tier.Rest(t)
	file := filepath.Join(t.TempDir(), "guest.wasm")
	build := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-o", file, "./testdata/goguest")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)

	ctx := context.Background()
	bin, err := os.ReadFile(file)
	require.NoError(t, err)
	m, err := newRuntime(t, Config{}).Load(file, bin, Limits{Budget: 300_000_000, MemoryPages: 1024})
	require.NoError(t, err)
	assert.Equal(t, []string{"crash", "hoard", "run", "spin"}, m.Hooks())
	var lines []string
	options := Options{Hook: "go", Config: []byte(`{"Greeting": "hello"}`), Seed: 5, Log: func(s string) { lines = append(lines, s) }}
	run := func() string {
		i := open(t, m, options)
		out := Of(Out, make([]uint8, 64))
		year, err := i.Call(ctx, "run", 3, out)
		require.NoError(t, err)
		assert.EqualValues(t, 2000, year)
		return string(out.Data)
	}
	first := run()
	assert.Contains(t, first, "slept 3h0m0s")
	assert.Equal(t, []string{"hello, seed 5, 0 arguments, 0 variables", "open /etc/passwd: Capabilities insufficient"}, lines)
	assert.Equal(t, first, run())

	for name, want := range map[string]struct {
		kind Kind
		says string
	}{
		"crash": {Trap, "panic: no more ideas"},
		"spin":  {Budget, "took more than 300000000 units of work"},
		"hoard": {Memory, "asked for more than 1024 pages of memory, then: "},
	} {
		_, err := open(t, m, options).Call(ctx, name, 0, Of(Out, make([]uint8, 64)))
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, want.kind, e.Kind, "%v", err)
		assert.ErrorContains(t, err, want.says)
	}

	options.Config = []byte("{")
	_, err = m.Open(ctx, options)
	assert.EqualError(t, err, "hook go: start function: failed: unexpected end of JSON input")
}
