package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
)

// counts are the counts of all tests.
type counts struct {
	Packages []string                    // in the order in which they began
	Tests    map[string]map[string]count // by package and name
}

// count says how many of its cases a test ran.
type count struct {
	Ran, All int
	Why      map[string]int `json:",omitempty"` // others did not, as numbers of them
}

func (n *count) add(ran, all int, why string) {
	n.Ran, n.All = n.Ran+ran, n.All+all
	if ran < all {
		n.Why[why] += all - ran
	}
}

func newCounts() *counts { return &counts{Tests: map[string]map[string]count{}} }

// set sets the count of a test.
func (c *counts) set(pack, test string, n count) {
	tests := c.Tests[pack]
	if tests == nil {
		tests = map[string]count{}
		c.Packages, c.Tests[pack] = append(c.Packages, pack), tests
	}
	tests[test] = n
}

// left returns the arguments of go test for the tests with cases left. Packages share one pattern, so a test of a name
// that another package has runs again, too.
func (c *counts) left() string {
	names, packages := map[string]bool{}, []string{}
	for _, p := range c.Packages {
		before := len(packages)
		for name, n := range c.Tests[p] {
			if n.Ran == n.All {
				continue
			}
			names[name] = true
			if len(packages) == before {
				packages = append(packages, p)
			}
		}
	}
	return fmt.Sprintf("-run=^(%s)$ %s", strings.Join(slices.Sorted(maps.Keys(names)), "|"), strings.Join(packages, " "))
}

// print says how many cases ran, and why others did not. rest is the command that runs the others; "": none does.
func (c *counts) print(out io.Writer, rest string) {
	ran, all, why := 0, 0, map[string]int{}
	for _, tests := range c.Tests {
		for _, n := range tests {
			ran, all = ran+n.Ran, all+n.All
			for reason, left := range n.Why {
				why[reason] += left
			}
		}
	}
	fmt.Fprintf(out, "ran %d of %d cases", ran, all)
	if rest != "" {
		fmt.Fprintf(out, "; %s runs the rest", rest)
	}
	fmt.Fprintln(out)
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		if reason != tier.Left || rest == "" {
			fmt.Fprintf(out, "not run: %d: %s\n", why[reason], reason)
		}
	}
}
