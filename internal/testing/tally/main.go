// Command tally reads the output of go test -json and prints what go test does without -json: a line for each package,
// and the output of those that fail. Then it says how many cases ran, and why others did not.
//
//	go test -json ./... | go run ./internal/testing/tally [-rest COMMAND] [-keep FILE]
//
// A case is a test, or what a test reports by tier.Count; a subtest that is skipped is one more. It exits with 1 if a
// package fails.
//
// With -keep it writes the counts of each test to a file. A later run takes only the tests that have cases left, and
// says how many cases ran in both:
//
//	args=$(go run ./internal/testing/tally -left FILE)
//	go test -json $args | go run ./internal/testing/tally -after FILE
//
// The file counts for the files that the tests were built from: if one has changed since, -left fails.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	rest := flag.String("rest", "", "the command that runs the other cases")
	keep := flag.String("keep", "", "the file to write the counts to")
	left := flag.String("left", "", "a file of -keep: print the arguments of go test for tests with cases left, and end")
	after := flag.String("after", "", "a file of -keep: count its tests, too; those that run again count once")
	flag.Parse()
	var err error
	if *left != "" {
		err = printLeft(os.Stdout, *left)
	} else {
		err = tally(os.Stdin, os.Stdout, *rest, *keep, *after)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
}

func printLeft(out io.Writer, path string) error {
	k, err := readKept(path)
	if err != nil {
		return err
	}
	now, err := sum(".")
	if err != nil {
		return err
	}
	if now != k.Sources {
		return fmt.Errorf("%s counts the tests of other sources: run make test again", path)
	}
	_, err = fmt.Fprintln(out, k.Counts.left())
	return err
}

func tally(in io.Reader, out io.Writer, rest, keep, after string) error {
	c := newCounts()
	if after != "" {
		k, err := readKept(after)
		if err != nil {
			return err
		}
		c = k.Counts
	}
	var tested string
	if keep != "" {
		var err error
		if tested, err = forget(keep); err != nil {
			return err
		}
	}
	failed, err := read(in, out, c)
	if err != nil {
		return err
	}
	c.print(out, rest)
	if failed {
		return errors.New("tests failed")
	}
	if keep == "" {
		return nil
	}
	return kept{tested, c}.write(keep)
}
