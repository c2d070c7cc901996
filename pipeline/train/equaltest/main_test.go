// Package equaltest tests that a layout of the pipeline changes no bit of a run: any number of stages, any schedule and
// any cut give the weights of one device. It holds tests only, apart from the tests of pipeline/train because they take
// long.
package equaltest

import (
	"os"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
)

// TestMain runs the tests in pipeline/train, from which the paths of example hooks are relative.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// sample returns the first n cases in the core of the tests, and otherwise all.
func sample[T any](t *testing.T, n int, cases []T) []T {
	t.Helper()
	return tier.Divide(t, cases, tier.First[T](n))
}
