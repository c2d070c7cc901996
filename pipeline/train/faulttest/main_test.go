// Package faulttest interrupts runs and takes their devices away: lost devices, failing worker processes, hanging
// devices, restarts. It holds tests only, apart from the tests of pipeline/train because they take long.
package faulttest

import (
	"os"
	"testing"
)

// TestMain runs the tests in pipeline/train, from which the paths of example hooks are relative.
func TestMain(m *testing.M) {
	serveAsWorker()
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
