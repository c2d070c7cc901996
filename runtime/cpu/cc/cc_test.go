package cc

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	unit   = "#line 1 \"" + Unit + "\"\nint answer(void) { return 42; }\n"
	symbol = "answer"
)

// script writes a compiler that runs a shell script. It counts the compilations: the calls other than --version.
func script(t *testing.T, body string) (command string, runs func() int) {
	t.Helper()
	dir := t.TempDir()
	command, count := filepath.Join(dir, "fakecc"), filepath.Join(dir, "count")
	text := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --version ]; then echo fakecc 1.2; exit 0; fi\necho >> %s\n"+
		"out=; for a; do if [ \"$last\" = -o ]; then out=$a; fi; last=$a; done\n%s\n", count, body)
	require.NoError(t, os.WriteFile(command, []byte(text), 0o755))
	return command, func() int {
		b, _ := os.ReadFile(count)
		return strings.Count(string(b), "\n")
	}
}

const genuine = `exec cc "$@"`

func opened(t *testing.T, o Options) *Compiler {
	t.Helper()
	c, err := Find(o)
	require.NoError(t, err)
	return c
}

func compile(c *Compiler, unit string) error {
	_, _, err := c.Compile(context.Background(), unit, symbol)
	return err
}

func TestCompile(t *testing.T) {
	c := opened(t, Options{})
	library, kept, err := c.Compile(context.Background(), unit, symbol)
	require.NoError(t, err)
	assert.False(t, kept)
	require.NoError(t, check(library, symbol))
	assert.ErrorIs(t, check(library, "other"), errUndefined)
	assert.NotEmpty(t, c.Version())
}

// A kept library is used by later compilers without a run, as long as source, compiler and CPU are the same.
func TestCache(t *testing.T) {
	command, runs := script(t, genuine)
	dir := t.TempDir()
	require.NoError(t, compile(opened(t, Options{Command: command, Cache: dir}), unit))
	first := runs()
	c := opened(t, Options{Command: command, Cache: dir})
	library, kept, err := c.Compile(context.Background(), unit, symbol)
	require.NoError(t, err)
	assert.True(t, kept)
	require.NoError(t, check(library, symbol))
	assert.Equal(t, first, runs(), "nothing is compiled")
	for _, change := range []func(){
		func() { require.NoError(t, compile(c, unit+"int more;")) },
		func() {
			require.NoError(t, compile(opened(t, Options{Command: command, Cache: dir, CPU: "another"}), unit))
		},
		func() {
			require.NoError(t, compile(opened(t, Options{Command: command + " -DOTHER", Cache: dir}), unit))
		},
		func() { // the same words, but behind the others
			require.NoError(t, compile(opened(t, Options{Command: command, Last: []string{"-DOTHER"}, Cache: dir}), unit))
		},
		func() {
			require.NoError(t, os.Chtimes(command, time.Time{}, time.Unix(1e9, 0)))
			require.NoError(t, compile(opened(t, Options{Command: command, Cache: dir}), unit))
		},
		func() {
			_, err := c.Again(context.Background(), unit, symbol)
			require.NoError(t, err)
		},
	} {
		before := runs()
		change()
		assert.Greater(t, runs(), before)
	}
}

// A kept file that is damaged anywhere is written again: of a library, or of a unit with the name of its library.
func TestDamagedCache(t *testing.T) {
	command, runs := script(t, genuine)
	dir := t.TempDir()
	c := opened(t, Options{Command: command, Cache: dir})
	require.NoError(t, compile(c, unit))
	for _, kind := range []string{"kernel-*", libraryPrefix + "*"} {
		files, err := filepath.Glob(filepath.Join(dir, kind))
		require.NoError(t, err)
		file := files[len(files)-1]
		whole, err := os.ReadFile(file)
		require.NoError(t, err)
		flipped := append([]byte{}, whole...)
		flipped[len(flipped)/2] ^= 1
		for _, damaged := range [][]byte{nil, whole[:10], whole[:len(whole)-1], flipped} {
			require.NoError(t, os.WriteFile(file, damaged, 0o600))
			before := runs()
			library, kept, err := c.Compile(context.Background(), unit, symbol)
			require.NoError(t, err)
			assert.False(t, kept)
			assert.Equal(t, before+1, runs())
			require.NoError(t, check(library, symbol))
			repaired, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.True(t, string(whole) == string(repaired))
		}
		require.NoError(t, os.Remove(file))
		require.NoError(t, compile(c, unit))
		assert.FileExists(t, file)
	}
}

// several returns sources of which one may be wrong.
func several(n, wrong int) (sources []Source) {
	for i := range n {
		s := Source{Symbol: fmt.Sprintf("f%d", i)}
		s.Unit = fmt.Sprintf("#line 1 %q\nstatic int twice(int x) { return x * 2; }\nint %s(void) { return twice(%d); }\n", Unit, s.Symbol, i)
		if i == wrong {
			s.Unit += "oops\n"
		}
		sources = append(sources, s)
	}
	return sources
}

// One run of the compiler makes the library of several units. Each of them is then kept, also beside others.
func TestCompileAll(t *testing.T) {
	command, runs := script(t, genuine)
	for _, cache := range []string{"", t.TempDir()} {
		c := opened(t, Options{Command: command, Cache: cache})
		_, err := c.chosen(context.Background())
		require.NoError(t, err)
		before := runs()
		for _, r := range c.CompileAll(context.Background(), several(3, -1)) {
			require.NoError(t, r.Err)
			assert.False(t, r.Kept)
			for _, s := range several(3, -1) {
				require.NoError(t, check(r.Library, s.Symbol))
			}
		}
		assert.Equal(t, before+1, runs())
		if cache == "" {
			continue
		}
		for i, r := range c.CompileAll(context.Background(), several(5, -1)) {
			require.NoError(t, check(r.Library, fmt.Sprintf("f%d", i)))
			assert.Equal(t, i < 3, r.Kept)
		}
		assert.Equal(t, before+2, runs())
		_, kept, err := c.Compile(context.Background(), several(5, -1)[4].Unit, "f4")
		require.NoError(t, err)
		assert.True(t, kept)
		assert.Equal(t, before+2, runs())
	}
}

// A unit that the compiler refuses has its own error, and the others have libraries.
func TestCompileAllWithAMistake(t *testing.T) {
	for i, r := range opened(t, Options{}).CompileAll(context.Background(), several(4, 2)) {
		if i != 2 {
			require.NoError(t, r.Err)
			require.NoError(t, check(r.Library, fmt.Sprintf("f%d", i)))
			continue
		}
		var refusal *SourceError
		require.ErrorAs(t, r.Err, &refusal)
		assert.Contains(t, refusal.Line, Unit+":3:")
	}
}

// A unit that another compiler is making is not made beside others, but awaited.
func TestCompileAllWaits(t *testing.T) {
	command, runs := script(t, genuine)
	c := opened(t, Options{Command: command, Cache: t.TempDir()})
	f, err := c.chosen(context.Background())
	require.NoError(t, err)
	sources := several(3, -1)
	release := hold(context.Background(), c.path(sources[1].Unit, f))
	library, err := opened(t, Options{Command: command}).Again(context.Background(), sources[1].Unit, sources[1].Symbol)
	require.NoError(t, err)
	before := runs()
	done := make(chan []Result)
	go func() { done <- c.CompileAll(context.Background(), sources) }()
	for c.use(c.path(sources[2].Unit, f)) == nil {
		time.Sleep(time.Millisecond)
	}
	c.keep(library, c.path(sources[1].Unit, f))
	release()
	for i, r := range <-done {
		require.NoError(t, r.Err)
		assert.Equal(t, i == 1, r.Kept)
	}
	assert.Equal(t, before+1, runs())
}

// Without room for the cache, everything is compiled and nothing is kept.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a file")
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // below it nothing can be written, by root neither
	c := opened(t, Options{Cache: dir})
	for range 2 {
		_, kept, err := c.Compile(context.Background(), unit, symbol)
		require.NoError(t, err)
		assert.False(t, kept)
	}
}

// Without room for the compiler's files, memory takes them.
func TestNoTemporaryFolder(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	c := opened(t, Options{})
	dir, err := c.scratch.enter()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(dir, "/dev/shm/"))
	require.NoError(t, compile(c, unit))
	assert.DirExists(t, dir)
	c.scratch.leave()
	assert.NoDirExists(t, dir)
}

// Between compilations there is nothing that a killed process could leave.
func TestNothingIsLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	require.NoError(t, compile(opened(t, Options{}), unit))
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestSourceErrors(t *testing.T) {
	c := opened(t, Options{})
	for source, want := range map[string]string{
		"int answer(void) { return x; }":                                         Unit + ":1:",
		"int answer(void) { return f(1); }":                                      Unit + ":1:",
		"int other(void) { return 1; }":                                          Unit + ": error: the source does not define answer",
		"\n\n#error stop\n":                                                      Unit + ":3:",
		"int answer(void) { int 世; return; ":                                     Unit + ":1:",
		`int answer(void) { __asm__("nothing like an instruction"); return 1; }`: ":",
	} {
		err := compile(c, "#line 1 \""+Unit+"\"\n"+source)
		var refusal *SourceError
		require.ErrorAs(t, err, &refusal, source)
		assert.Contains(t, err.Error(), want)
		assert.NotContains(t, err.Error(), "\n")
	}
	require.NoError(t, compile(c, unit))
}

// Whether the compiler accepts a unit is found out once, also if it does not. Another failure of the compiler is no
// refusal, and nothing is kept.
func TestAccepts(t *testing.T) {
	for name, unit := range map[string]string{
		"language":  "#line 1 \"" + Unit + "\"\nint answer(void) { return x; }",
		"assembler": "#line 1 \"" + Unit + "\"\nint answer(void) { __asm__(\"nothing like an instruction\"); return 1; }",
	} {
		t.Run(name, func(t *testing.T) {
			command, runs := script(t, genuine)
			dir := t.TempDir()
			assert.False(t, opened(t, Options{Command: command, Cache: dir}).Accepts(context.Background(), unit, symbol))
			first := runs()
			assert.False(t, opened(t, Options{Command: command, Cache: dir}).Accepts(context.Background(), unit, symbol))
			assert.Equal(t, first, runs(), "nothing is compiled")
			assert.False(t, opened(t, Options{Command: command, Cache: dir, CPU: "another"}).Accepts(context.Background(), unit, symbol))
			assert.Greater(t, runs(), first)
		})
	}
	command, runs := script(t, `cat > unit; if [ -e "$0.works" ] || grep -q gp_trial unit; then exec cc "$@" < unit; fi; echo 'fatal error: no room' >&2; exit 1`)
	o := Options{Command: command, Cache: t.TempDir()}
	assert.False(t, opened(t, o).Accepts(context.Background(), unit, symbol))
	failed := runs()
	require.NoError(t, os.WriteFile(command+".works", nil, 0o600))
	assert.True(t, opened(t, o).Accepts(context.Background(), unit, symbol), "accepted when it works")
	assert.Greater(t, runs(), failed)
}

// What a compiler does wrong is an error that names it, and not an error of the source.
func TestBadCompilers(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"fails":          {"echo warning: nothing; echo 'fatal error: no room' >&2; exit 1", "exit status 1: fatal error: no room"},
		"fails silently": {"exit 3", "exit status 3, without a message"}, "crashes": {"kill -SEGV $$", "segmentation fault"},
		"internal error": {"echo 'kernel.c:1:2: internal compiler error: oh'; exit 4",
			"exit status 4: kernel.c:1:2: internal compiler error: oh"},
		"writes nothing":  {"exit 0", "reported success, but its result is unusable: there is no library"},
		"writes text":     {"echo hello > $out", "not a complete library"},
		"removes it":      {"rm $out", "no such file"},
		"stops too early": {"cc \"$@\" && head -c 1500 $out > $out.2 && mv $out.2 $out", "not a complete library"},
		"makes an object": {"cc -c \"$@\"", "expected a shared library"},
		"prints too much": {"head -c 1000000 /dev/zero | tr '\\0' x; exit 1", "exit status 1: xxx"},
	} {
		t.Run(name, func(t *testing.T) {
			command, _ := script(t, c.body)
			err := compile(opened(t, Options{Command: command}), unit)
			require.ErrorContains(t, err, c.want)
			assert.ErrorContains(t, err, command)
			var refusal *SourceError
			assert.NotErrorAs(t, err, &refusal)
			assert.Less(t, len(err.Error()), maxOutput+1000)
		})
	}
}

// A compiler that accepts fewer flags than gcc is used without them.
func TestFlags(t *testing.T) {
	command, runs := script(t, `case "$*" in *native*) echo "error: unknown argument"; exit 1;; *lgcc*) echo "cannot find -lgcc"; exit 1;; esac; `+genuine)
	dir := t.TempDir()
	c := opened(t, Options{Command: command, Cache: dir, CPU: "sse avx512f"})
	require.NoError(t, compile(c, unit))
	assert.NotContains(t, c.flags.String(), "native")
	before := runs()
	require.NoError(t, compile(opened(t, Options{Command: command, Cache: dir, CPU: "sse avx512f"}), unit))
	assert.Equal(t, before, runs(), "flags are kept too")
}

func TestFind(t *testing.T) {
	_, err := Find(Options{Command: "no-such-compiler -O2"})
	require.EqualError(t, err, `the C compiler "no-such-compiler" was not found`)
	failing := filepath.Join(t.TempDir(), "cc")
	require.NoError(t, os.WriteFile(failing, []byte("#!/bin/sh\necho licence expired; exit 9"), 0o755))
	t.Setenv("CC", failing)
	_, err = Find(Options{})
	require.EqualError(t, err, "the C compiler does not work: "+failing+": exit status 9: licence expired")
	t.Setenv("CC", "no-such-compiler")
	c, err := Find(Options{})
	require.NoError(t, err)
	assert.Equal(t, "cc", filepath.Base(c.String()))
	t.Setenv("PATH", t.TempDir())
	_, err = Find(Options{})
	require.ErrorContains(t, err, "no C compiler found: looked for $CC, cc, gcc and clang (apt install gcc installs one)")
}

// A compiler that does not end is stopped.
func TestCancel(t *testing.T) {
	command, _ := script(t, "exec sleep 1000")
	c := opened(t, Options{Command: command})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, _, err := c.Compile(ctx, unit, symbol)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, command)
}

// Compilers that share a cache compile each unit once, also if they do so at the same time.
func TestConcurrentUse(t *testing.T) {
	command, runs := script(t, "sleep 0.1; "+genuine)
	dir := t.TempDir()
	o := Options{Command: command, Cache: dir}
	require.NoError(t, compile(opened(t, o), unit)) // chooses the flags
	before := runs()
	var wait sync.WaitGroup
	for range 3 {
		c := opened(t, o)
		for i := range 4 {
			wait.Go(func() { assert.NoError(t, compile(c, unit+strings.Repeat("\n", 1+i%2))) })
		}
	}
	wait.Wait()
	assert.Equal(t, before+2, runs())
	locks, err := filepath.Glob(filepath.Join(dir, codecache.LockPrefix+"*"))
	require.NoError(t, err)
	assert.Empty(t, locks)
}

func TestMakeCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	require.NoError(t, MakeCache(dir))
	left := filepath.Join(dir, codecache.LockPrefix+"kernel-1")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	require.NoError(t, os.Chtimes(left, time.Time{}, time.Now().Add(-48*time.Hour)))
	require.NoError(t, MakeCache(dir))
	assert.NoFileExists(t, left)
	require.NoError(t, os.Chmod(dir, 0o770))
	require.ErrorContains(t, MakeCache(dir), "may be written to by others")
}

// Every truncation of a library is found before the loader sees it.
func TestTruncatedLibraries(t *testing.T) {
	c := opened(t, Options{})
	library, _, err := c.Compile(context.Background(), unit, symbol)
	require.NoError(t, err)
	for n := range library {
		require.Error(t, check(library[:n], symbol), "%d of %d bytes", n, len(library))
	}
	object := append([]byte{}, library...)
	object[16] = byte(elf.ET_REL)
	require.ErrorContains(t, check(object, symbol), "expected a shared library")
}
