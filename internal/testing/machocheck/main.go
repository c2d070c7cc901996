// Command machocheck checks programs for macOS as far as that is possible on another system, and prints what macOS
// reads to start them, as otool -l does:
//
//	go run ./internal/testing/machocheck -macos 12.0 PROGRAM...
//
// A program must run from that macOS on, link libraries and frameworks of the system alone, name the library of each
// symbol that it imports, and, for arm64, have a signature that fits its bytes: macOS kills others. It exits with 1 if
// one does not.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	minimum := flag.String("macos", "12.0", "the oldest macOS that the programs must run on")
	flag.Parse()
	if err := run(os.Stdout, *minimum, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "machocheck:", err)
		os.Exit(1)
	}
}

// run checks programs and prints what was found, up to the first that fails.
func run(out io.Writer, minimum string, paths []string) error {
	for _, path := range paths {
		p, err := read(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(out, "%s:\n%s", path, p)
		if err := p.check(minimum); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
