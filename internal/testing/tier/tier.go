// Package tier divides the tests in two: the core, which make test runs, and the rest, which make test-all adds. Tests
// without a mark belong to the core. internal/testing/tally counts the cases that a run omits.
package tier

import (
	"fmt"
	"os"
	"testing"
)

// Variable names the environment variable that chooses the tests. With the value Core the rest is omitted; with Others
// the core has run, and tests that divide their cases leave its cases out. It is no flag, so that results of packages
// that never ask are kept from one tier to the other.
const (
	Variable = "GPUPIPE_TESTS"
	Core     = "core"
	Others   = "rest"
)

// Cases is the attribute by which a test reports its cases to internal/testing/tally, as "ran of all".
const Cases = "cases"

// Left is why a test of the rest is skipped.
const Left = "left to make test-all"

// All reports whether this run includes the rest. Under go test -short it does not, either.
func All() bool { return os.Getenv(Variable) != Core && !testing.Short() }

// CoreHasRun reports whether this run may leave out what the core has.
func CoreHasRun() bool { return os.Getenv(Variable) == Others }

// Rest leaves a test to make test-all.
func Rest(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip(Left)
	}
}

// Some returns the cases of a test that this run tries: all of them, or in the core those that keep chooses, given
// their index. A test without cases for the core is skipped. A test that calls Some several times does so in both
// tiers, so that the counts agree.
func Some[T any](t testing.TB, cases []T, keep func(i int, c T) bool) []T {
	t.Helper()
	tried := cases
	if !All() {
		tried = nil
		for i, c := range cases {
			if keep(i, c) {
				tried = append(tried, c)
			}
		}
	}
	Count(t, len(tried), len(cases))
	if len(tried) == 0 {
		t.Skip(Left)
	}
	return tried
}

// Divide is Some where no call is within a loop over the cases of another: if the core has run, it returns the other
// cases, and counts all. Within a loop it would lose the cases that the core omits with the outer one.
func Divide[T any](t testing.TB, cases []T, keep func(i int, c T) bool) []T {
	t.Helper()
	if !CoreHasRun() {
		return Some(t, cases, keep)
	}
	var others []T
	for i, c := range cases {
		if !keep(i, c) {
			others = append(others, c)
		}
	}
	Count(t, len(cases), len(cases))
	return others
}

// First chooses the first n cases.
func First[T any](n int) func(i int, c T) bool {
	return func(i int, _ T) bool { return i < n }
}

// Every chooses one case in n, from the first on.
func Every[T any](n int) func(i int, c T) bool {
	return func(i int, _ T) bool { return i%n == 0 }
}

// Times returns how often a test repeats a random case: all times, or in the core fewer. It is called once a test.
func Times(t testing.TB, all, core int) int {
	t.Helper()
	times := all
	if !All() {
		times = core
	}
	Count(t, times, all)
	return times
}

// Count reports how many of its cases a test ran.
func Count(t testing.TB, ran, all int) {
	t.Helper()
	t.Attr(Cases, fmt.Sprintf("%d of %d", ran, all))
}
