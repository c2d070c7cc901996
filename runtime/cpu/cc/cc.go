// Package cc compiles C with the machine's compiler and keeps the results on disk.
//
// A Compiler turns translation units into shared libraries. Each kernel is a unit of its own, so its code does not
// depend on the units that are compiled beside it. One run of the compiler makes a library of several units, which
// saves a tenth of the time: the driver and the linker run once. The file of a unit in the cache names the library that
// has its code, so programs that have a kernel in common share it.
package cc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options of a compiler.
type Options struct {
	Command string   // with arguments; "": the first that exists of $CC, cc, gcc and clang
	Cache   string   // a folder that codecache.Make has made or checked; "": nothing is kept
	Last    []string // arguments after all others: they decide the CPU and the optimization, if they name these
	CPU     string   // identifies the CPU and its features: libraries of one CPU are not used on another
}

// Compiler compiles translation units. Methods are safe for concurrent use.
type Compiler struct {
	command  []string // path and arguments
	last     []string // further arguments
	version  string
	cpu      string
	identity string // of the compiler and the CPU
	cache    string

	choosing sync.Mutex
	flags    *flags // nil: not chosen yet

	scratch scratch
}

// SourceError is a compiler's refusal of a translation unit.
type SourceError struct{ Line string }

func (e *SourceError) Error() string { return e.Line }

// Unit is the name of a translation unit in the messages of compilers. A source marks its first line with #line 1 Unit.
const Unit = "kernel.c"

// assembly is the name of a unit in the messages of gcc's assembler, where these do not name Unit.
const assembly = "{standard input}"

const (
	maxCompile = 2 * time.Minute // of one unit
	maxOutput  = 64 << 10        // bytes of a compiler's messages
)

// Find returns the compiler that o selects. It runs the compiler once, for its version.
func Find(o Options) (*Compiler, error) {
	command, err := find(o.Command)
	if err != nil {
		return nil, err
	}
	c := &Compiler{command: command, last: o.Last, cpu: o.CPU, cache: o.Cache}
	info, err := os.Stat(command[0]) // of the target of a link
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxCompile)
	defer cancel()
	out, err := c.run(ctx, "", "", "--version")
	if err != nil {
		return nil, fmt.Errorf("the C compiler does not work: %w", err)
	}
	if c.version = firstLine(out); c.version == "" {
		return nil, fmt.Errorf("%s --version printed nothing", c)
	}
	c.identity = strings.Join([]string{strings.Join(command, " "), strings.Join(o.Last, " "), c.version, info.ModTime().UTC().String(),
		fmt.Sprint(info.Size()), o.CPU}, "\x00")
	return c, nil
}

// find returns the path and arguments of a compiler.
func find(command string) ([]string, error) {
	if command != "" {
		words := strings.Fields(command)
		path, err := exec.LookPath(words[0])
		if err != nil {
			return nil, fmt.Errorf("the C compiler %q was not found", words[0])
		}
		return append([]string{path}, words[1:]...), nil
	}
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if words := strings.Fields(name); len(words) > 0 {
			if path, err := exec.LookPath(words[0]); err == nil {
				return append([]string{path}, words[1:]...), nil
			}
		}
	}
	return nil, errors.New("no C compiler found: looked for $CC, cc, gcc and clang (apt install gcc installs one)")
}

// String returns the command.
func (c *Compiler) String() string { return strings.Join(c.command, " ") }

// Version returns the first line that the compiler prints about itself.
func (c *Compiler) Version() string { return c.version }

// build runs the compiler and checks that its result is a complete library. A single unit is its standard input.
func (c *Compiler) build(ctx context.Context, units []Source, flags *flags) ([]byte, error) {
	scratch, err := c.scratch.enter()
	if err != nil {
		return nil, err
	}
	defer c.scratch.leave()
	dir, err := os.MkdirTemp(scratch, "library-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(units))*maxCompile)
	defer cancel()
	input, files := units[0].Unit, []string{"-"}
	if len(units) > 1 {
		input = ""
		if files, err = write(dir, units); err != nil {
			return nil, err
		}
	}
	out := filepath.Join(dir, "library")
	if err := os.WriteFile(out, nil, 0o600); err != nil {
		return nil, err
	}
	if _, err := c.run(ctx, scratch, input, slices.Concat(flags.compile, []string{"-x", "c"}, files, []string{"-o", out}, flags.link,
		c.last)...); err != nil {
		return nil, err
	}
	library, err := os.ReadFile(out)
	for _, u := range units {
		if err == nil {
			err = check(library, u.Symbol)
		}
		if errors.Is(err, errUndefined) {
			return nil, &SourceError{Line: fmt.Sprintf("%s: error: the source does not define %s", Unit, u.Symbol)}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s reported success, but its result is unusable: %w", c, err)
	}
	return library, nil
}

// write writes each unit to a file.
func write(dir string, units []Source) (files []string, err error) {
	for i, u := range units {
		file := filepath.Join(dir, fmt.Sprintf("%d.c", i))
		if err := os.WriteFile(file, []byte(u.Unit), 0o600); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// run runs the compiler with input and returns what it prints to both streams.
func (c *Compiler) run(ctx context.Context, scratch, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.command[0], slices.Concat(c.command[1:], args)...)
	var out output
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = strings.NewReader(input), &out, &out, 2*time.Second
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if scratch != "" {
		cmd.Dir = scratch
		cmd.Env = append(cmd.Env, "TMPDIR="+scratch)
	}
	err := cmd.Run()
	if err == nil {
		return string(out.kept), nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", c, ctx.Err())
	}
	return "", c.failure(err, string(out.kept))
}

// failure makes the error of a run of the compiler that ended with err.
func (c *Compiler) failure(err error, out string) error {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); !strings.Contains(line, "error: ") && !strings.Contains(line, " Error: ") { // an assembler's
			continue
		}
		var exit *exec.ExitError
		named := strings.HasPrefix(line, Unit+":") || strings.HasPrefix(line, assembly+":")
		if errors.As(err, &exit) && exit.ExitCode() == 1 && named {
			return &SourceError{Line: line}
		}
		return fmt.Errorf("%s: %w: %s", c, err, line)
	}
	if line := firstLine(out); line != "" {
		return fmt.Errorf("%s: %w: %s", c, err, line)
	}
	return fmt.Errorf("%s: %w, without a message", c, err)
}

// output keeps the first maxOutput bytes that are written to it.
type output struct{ kept []byte }

func (o *output) Write(p []byte) (int, error) {
	o.kept = append(o.kept, p[:min(len(p), maxOutput-len(o.kept))]...)
	return len(p), nil
}

func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}
