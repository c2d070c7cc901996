// Package hooktest trains with WebAssembly hooks of every kind: failures, resumed runs, example hooks, and models that
// a module builds. It holds tests only, apart from the tests of pipeline/train because they take long.
package hooktest

import (
	"os"
	"testing"
)

// TestMain runs the tests in pipeline/train, from which the paths of example hooks are relative.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
