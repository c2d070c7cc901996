//go:build linux && cgo

package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	_ device.Device   = (*Device)(nil)
	_ device.Timer    = (*Device)(nil)
	_ device.Importer = (*Device)(nil)
)

func open(t testing.TB, o Options) *Device {
	t.Helper()
	d, err := Open(cached(t, o))
	require.NoError(t, err, "these tests need a C compiler")
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

// cached gives a device the commands' own cache, unless it has a cache or a compiler of the test's: without one, each
// device tries the compiler anew. The name of each file there is a sum of what the file was compiled from.
func cached(t testing.TB, o Options) Options {
	t.Helper()
	if o.CacheDir == "" && o.Toolchain == nil && !strings.Contains(o.Compiler, "/") {
		dir, err := os.UserCacheDir()
		require.NoError(t, err)
		o.CacheDir = filepath.Join(dir, "gpupipe", "cpu")
	}
	return o
}

func alloc(t testing.TB, d device.Device, size int64) device.Buffer {
	t.Helper()
	b, err := d.Alloc("b", size)
	require.NoError(t, err)
	return b
}

// shader returns a kernel whose C runs body for each workgroup, with n bindings.
func shader(label string, n int, body string) device.Shader {
	return device.Shader{Label: label, Workgroup: [3]int{1, 1, 1}, Bindings: make([]device.Access, n),
		Source: target.C + "\nKERNEL {\n  for (u32 group = first; group < last; group++) {\n" + body + "\n  }\n}\n"}
}

// count adds one to the word of each workgroup.
func count() device.Shader { return shader("count", 1, "((u32 *)args[0].at)[group]++;") }

func dispatchOf(b device.Buffer, groups int) device.Command {
	return device.Command{Args: []device.Range{{Buffer: b, Size: b.Size()}}, Groups: [3]int{groups, 1, 1}}
}

func counting(b device.Buffer, groups ...int) *device.Program {
	p := &device.Program{Label: "counting", Shaders: []device.Shader{count()}}
	for _, n := range groups {
		p.Commands = append(p.Commands, dispatchOf(b, n))
	}
	return p
}

var threadCounts = []int{1, 2, 3, 8}

// Each workgroup runs once, commands run in order, and workgroups are numbered x first.
func TestDispatches(t *testing.T) {
	number := shader("number", 1, `((u32 *)args[0].at)[group] = grid[0] * 10000 + grid[1] * 100 + grid[2] + group * 1000000 + (u32)(args[0].bytes >> 12);`)
	for _, threads := range threadCounts {
		d := open(t, Options{Threads: threads})
		b := alloc(t, d, 4096)
		p := &device.Program{Label: "number", Shaders: []device.Shader{number}, Commands: []device.Command{dispatchOf(b, 1)}}
		p.Commands[0].Groups = [3]int{5, 7, 11}
		require.NoError(t, d.Run(contract.Load(t, d, p)))
		words := contract.Words(contract.Read(t, d, b, 0, 4096))
		for i := range uint32(5 * 7 * 11) {
			require.Equal(t, i*1000000+50000+700+11+1, words[i])
		}
		assert.Zero(t, words[5*7*11])
	}
}

// Many commands of any length, alone and shared, give each workgroup its turns: no workgroup is lost or runs twice.
func TestPoolUnderStress(t *testing.T) {
	tier.Rest(t)
	const words = 1 << 12
	slow := shader("slow", 1, `u32 *w = args[0].at; u32 x = w[group]; for (int i = 0; i < 200; i++) __asm__ volatile("" : "+r"(x)); w[group] = x + 1;`)
	for _, threads := range threadCounts {
		d := open(t, Options{Threads: threads})
		b := alloc(t, d, 4*words)
		p := &device.Program{Label: "stress", Shaders: []device.Shader{count(), slow}}
		want := make([]uint32, words)
		const runs = 20
		for i := range 1000 {
			c := dispatchOf(b, 1+(i*i*37)%(1<<(i%12+1)))
			c.Shader = i / 3 % 2
			p.Commands = append(p.Commands, c)
			for k := range c.Groups[0] {
				want[k] += runs
			}
		}
		l := contract.Load(t, d, p)
		for range runs {
			require.NoError(t, d.Run(l))
		}
		require.Equal(t, want, contract.Words(contract.Read(t, d, b, 0, 4*words)), "%d threads", threads)
	}
}

// Sums of floats have the same bits on any number of threads, and in every run.
func TestThreadsGiveEqualBits(t *testing.T) {
	const rows, columns = 300, 1000
	sum := shader("sum", 2, fmt.Sprintf(`const f32 *x = (const f32 *)args[0].at + group * %d; f32 s = 0;
for (int i = 0; i < %[1]d; i++) s += x[i] * x[%[1]d - 1 - i]; ((f32 *)args[1].at)[group] = s;`, columns))
	input := make([]byte, 0, 4*rows*columns)
	for i := range rows * columns {
		input = binary.LittleEndian.AppendUint32(input, math.Float32bits(float32(math.Sin(float64(i)))))
	}
	var first []byte
	for _, threads := range threadCounts {
		d := open(t, Options{Threads: threads})
		assert.Equal(t, threads, d.Threads())
		x, y, z := alloc(t, d, 4*rows*columns), alloc(t, d, 4*rows), alloc(t, d, 4*rows*columns)
		require.NoError(t, d.Write(x, 0, input))
		l := contract.Load(t, d, &device.Program{Label: "sums", Shaders: []device.Shader{sum}, Commands: []device.Command{
			{Args: []device.Range{{Buffer: x, Size: x.Size()}, {Buffer: y, Size: y.Size()}}, Groups: [3]int{rows, 1, 1}},
			{Shader: device.Copy, Args: []device.Range{{Buffer: x, Size: x.Size()}, {Buffer: z, Size: z.Size()}}}, // by several threads
		}})
		for range 5 {
			require.NoError(t, d.Run(l))
			got := append(contract.Read(t, d, y, 0, y.Size()), contract.Read(t, d, z, 0, z.Size())...)
			if first == nil {
				first = got
				assert.True(t, string(input) == string(got[4*rows:]))
			}
			require.True(t, string(first) == string(got), "%d threads", threads)
		}
	}
}

func TestTooManyWorkgroups(t *testing.T) {
	d := open(t, Options{})
	b := alloc(t, d, 256)
	p := counting(b, 1)
	p.Commands[0].Groups = [3]int{1 << 16, 1 << 16, 1}
	_, err := d.Load(p)
	require.ErrorIs(t, err, device.ErrValidation)
	require.ErrorContains(t, err, `cpu:0: load "count": validation failed: dispatch [65536 65536 1]: more than 4294967295 workgroups`)
}

func TestTimedCommands(t *testing.T) {
	d := open(t, Options{Threads: 2})
	b := alloc(t, d, 1<<20)
	l := contract.Load(t, d, counting(b, 1, 1<<18, 1))
	require.NoError(t, d.Run(l)) // makes the buffer's pages
	times, wall := contract.RunTimed(t, d, l)
	require.Len(t, times, 3)
	assert.Greater(t, times[1], times[0])
	assert.LessOrEqual(t, times[0]+times[1]+times[2], wall)
}

func TestTwoDevices(t *testing.T) {
	var wait sync.WaitGroup
	for range 2 {
		d := open(t, Options{Threads: 3}) // more in all than there may be cores
		b := alloc(t, d, 4<<10)
		l := contract.Load(t, d, counting(b, slices.Repeat([]int{1 << 10}, 200)...))
		wait.Go(func() {
			for range 20 {
				assert.NoError(t, d.Run(l))
			}
			assert.EqualValues(t, 4000, contract.Words(contract.Read(t, d, b, 0, 4096))[1023])
		})
	}
	wait.Wait()
}

// Close waits for the program that runs. What was enqueued before it completes.
func TestCloseWhileRunning(t *testing.T) {
	d := open(t, Options{Threads: 2})
	b := alloc(t, d, 64<<10)
	l := contract.Load(t, d, counting(b, slices.Repeat([]int{16 << 10}, 2000)...))
	for range 3 {
		require.NoError(t, d.Run(l))
	}
	r, err := d.Read(b, 0, 4)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	data, err := r.Wait()
	require.NoError(t, err)
	assert.Equal(t, []uint32{6000}, contract.Words(data))
	assert.ErrorIs(t, d.Run(l), device.ErrClosed)
}

func TestOptions(t *testing.T) {
	_, err := Open(Options{Index: 1})
	require.ErrorContains(t, err, "cpu:1: no such device; there are: cpu:0 (")
	for _, threads := range []int{-1, device.MaxThreads + 1} {
		_, err = Open(Options{Threads: threads})
		require.ErrorIs(t, err, device.ErrValidation)
		require.ErrorContains(t, err, "threads, expected 1 to 1024")
	}
	_, err = Open(Options{Compiler: "no-such-compiler"})
	require.EqualError(t, err, `cpu:0: open "": the C compiler "no-such-compiler" was not found`)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CC", "")
	_, err = FindToolchain("")
	require.ErrorContains(t, err, "no C compiler found")
	_, err = Open(Options{})
	require.ErrorContains(t, err, `cpu:0: open "": no C compiler found`)
}

// A compiler that fails is found before a device is chosen.
func TestFindToolchainTriesTheCompiler(t *testing.T) {
	command, _ := fake(t, "echo 'fatal error: no room'; exit 1")
	t.Setenv("CC", command)
	_, err := FindToolchain("")
	require.EqualError(t, err, "the C compiler does not work: "+command+": exit status 1: fatal error: no room")
}

func TestAdapter(t *testing.T) {
	found, err := FindToolchain("")
	require.NoError(t, err)
	d := open(t, Options{Toolchain: found})
	info := d.Info()
	assert.Equal(t, found.Adapter(), info)
	assert.Equal(t, "cpu:0", info.Name)
	assert.Equal(t, device.CPU, info.Kind)
	assert.NotEmpty(t, info.Adapter)
	assert.NotEmpty(t, info.Driver)
	assert.Positive(t, d.Budget())
	assert.Equal(t, thisMachine().processors.Cores(), d.Threads())
}

// compilers are those of the machine.
func compilers(t *testing.T) (found []string) {
	for _, name := range []string{"gcc", "clang"} {
		if _, err := exec.LookPath(name); err == nil {
			found = append(found, name)
		}
	}
	require.NotEmpty(t, found)
	return found
}

func TestCompilers(t *testing.T) {
	for _, name := range compilers(t) {
		d := open(t, Options{Compiler: name})
		b := alloc(t, d, 4096)
		require.NoError(t, d.Run(contract.Load(t, d, counting(b, 1000))))
		assert.EqualValues(t, 1, contract.Words(contract.Read(t, d, b, 0, 4096))[999])
	}
}

// fake writes a compiler that runs a shell script for each kernel, and cc for everything else. It counts kernels.
func fake(t *testing.T, body string) (command string, kernels func() int) {
	dir := t.TempDir()
	command, counter := filepath.Join(dir, "fakecc"), filepath.Join(dir, "count")
	text := fmt.Sprintf(`#!/bin/sh
if [ "$1" = --version ]; then echo fakecc 1.2; exit 0; fi
for a; do if [ "$last" = -o ]; then out=$a; fi; last=$a; done
cat > $out.c
if grep -q KERNEL $out.c; then echo >> %s; %s; fi
exec cc -x c "$@" < $out.c
`, counter, body)
	require.NoError(t, os.WriteFile(command, []byte(text), 0o755))
	return command, func() int {
		b, _ := os.ReadFile(counter)
		return strings.Count(string(b), "\n")
	}
}

func TestKernelsAreCompiledOnce(t *testing.T) {
	command, kernels := fake(t, ":")
	o := Options{CacheDir: filepath.Join(t.TempDir(), "new"), Compiler: command}
	for opened := range 2 { // the second device finds the first one's files
		d := open(t, o)
		before := kernels()
		b := alloc(t, d, 4096)
		for range 2 {
			p := counting(b, 3)
			p.Shaders = append(p.Shaders, p.Shaders[0])
			require.NoError(t, d.Run(contract.Load(t, d, p)))
		}
		assert.EqualValues(t, 2, contract.Words(contract.Read(t, d, b, 0, 4))[0])
		assert.Equal(t, 1-opened, kernels()-before)
	}
}

// CFlags are the compiler's last arguments, and kernels that were kept for other arguments are not used.
func TestCFlags(t *testing.T) {
	command, kernels := fake(t, `echo "$last" >> $0.last`)
	o := Options{CacheDir: t.TempDir(), Compiler: command}
	for i, flags := range [][]string{{"-O1", "-DFACTOR=3"}, {"-O1", "-DFACTOR=4"}, {"-O1", "-DFACTOR=3"}} {
		o.CFlags = flags
		before := kernels()
		d := open(t, o)
		b := alloc(t, d, 16)
		p := &device.Program{Label: "factor", Shaders: []device.Shader{shader("factor", 1, "((u32 *)args[0].at)[group] = FACTOR;")},
			Commands: []device.Command{dispatchOf(b, 1)}}
		require.NoError(t, d.Run(contract.Load(t, d, p)))
		assert.EqualValues(t, 3+i%2, contract.Words(contract.Read(t, d, b, 0, 4))[0])
		assert.Equal(t, i < 2, kernels() > before)
	}
	last, err := os.ReadFile(command + ".last")
	require.NoError(t, err)
	assert.Equal(t, []string{"-DFACTOR=3", "-DFACTOR=4"}, slices.Compact(strings.Fields(string(last))))
}

// A kept file that is whole but does not load is made again.
func TestKeptFileThatDoesNotLoad(t *testing.T) {
	dir := t.TempDir()
	kept := func() []string {
		files, err := filepath.Glob(filepath.Join(dir, "library-*"))
		require.NoError(t, err)
		return files
	}
	var trials []string
	load := func() {
		d := open(t, Options{CacheDir: dir})
		trials = kept()
		contract.Load(t, d, counting(alloc(t, d, 4096), 3))
	}
	load()
	files := slices.DeleteFunc(kept(), func(f string) bool { return slices.Contains(trials, f) })
	require.Len(t, files, 1)
	good := codecache.Read(files[0])
	require.NoError(t, codecache.Write(files[0], []byte("from another system")))
	load()
	assert.Equal(t, string(good), string(codecache.Read(files[0])))
}

func TestCacheOfOthers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := Open(Options{CacheDir: dir})
	require.ErrorContains(t, err, "may be written to by others")
	require.ErrorContains(t, err, "chmod go-w")
	require.Error(t, MakeCache(dir))
	d, err := Open(Options{})
	require.NoError(t, err)
	contract.Load(t, d, counting(alloc(t, d, 4096), 3))
	require.NoError(t, d.Close())
}

// A compiler's failure is the error of the kernel, and the device goes on.
func TestBadCompilers(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"fails":   {"echo 'fatal error: no room'; exit 1", ": exit status 1: fatal error: no room"},
		"crashes": {"kill -SEGV $$", ": signal: segmentation fault, without a message"},
		"no file": {"exit 0", " reported success, but its result is unusable: there is no library"},
		"truncated": {`cc -x c "$@" < $out.c; truncate -s 1300 $out; exit 0`,
			" reported success, but its result is unusable: not a complete library: "},
	} {
		t.Run(name, func(t *testing.T) {
			command, _ := fake(t, "if grep -q wrong $out.c; then "+c.body+"; fi")
			d := open(t, Options{Compiler: command, CacheDir: t.TempDir()})
			b := alloc(t, d, 4096)
			p := counting(b, 3)
			p.Shaders[0].Source += "// wrong"
			_, err := d.Load(p)
			require.ErrorContains(t, err, `cpu:0: compile "count": `+command+c.want)
			assert.NotErrorIs(t, err, device.ErrValidation)
			require.NoError(t, d.Run(contract.Load(t, d, counting(b, 3))))
		})
	}
}

// The device takes C alone: nothing of the program translates other languages.
func TestSourcesAreC(t *testing.T) {
	d := open(t, Options{})
	_, err := d.Load(contract.Increments(alloc(t, d, 4096), 1))
	require.ErrorIs(t, err, device.ErrValidation)
	require.ErrorContains(t, err, `cpu:0: compile "increment": validation failed: `)
	require.ErrorContains(t, err, "the source is WGSL, which this device does not take: it must be C")
}

func TestSourceErrors(t *testing.T) {
	d := open(t, Options{})
	p := counting(alloc(t, d, 4096), 3)
	p.Shaders[0].Source = target.C + "\n\nKERNEL { oops }\n"
	_, err := d.Load(p)
	require.ErrorIs(t, err, device.ErrValidation)
	require.ErrorContains(t, err, `cpu:0: compile "count": validation failed: `)
	require.ErrorContains(t, err, ": kernel.c:3:")
	p.Shaders[0].Source = target.C + "\nint nothing;\n"
	_, err = d.Load(p)
	require.ErrorIs(t, err, device.ErrValidation)
	require.ErrorContains(t, err, "does not define")
}

// The kernels of a program that compile are kept, though another one fails.
func TestOneBadKernel(t *testing.T) {
	command, kernels := fake(t, ":")
	d := open(t, Options{Compiler: command, Threads: 1})
	trials := kernels()
	b := alloc(t, d, 4096)
	p := counting(b, 3)
	p.Shaders = append(p.Shaders, shader("bad", 1, "oops"))
	_, err := d.Load(p)
	require.ErrorContains(t, err, `compile "bad"`)
	assert.Equal(t, 2, kernels()-trials)
	contract.Load(t, d, counting(b, 3))
	assert.Equal(t, 2, kernels()-trials)
}

// Close ends a Load of many kernels.
func TestLeavingC(t *testing.T) {
	command, _ := fake(t, "sleep 0.05")
	d := open(t, Options{Compiler: command})
	b := alloc(t, d, 4096)
	p := counting(b, 3)
	p.Shaders = nil
	for i := range 3000 {
		p.Shaders = append(p.Shaders, shader("many", 1, fmt.Sprintf("((u32 *)args[0].at)[0] = %d;", i)))
	}
	done := make(chan error, 1)
	go func() {
		_, err := d.Load(p)
		done <- err
	}()
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, d.Close())
	require.ErrorIs(t, <-done, device.ErrClosed)
}

func TestDump(t *testing.T) {
	var dumped []device.Kernel
	d := open(t, Options{Dump: func(k device.Kernel) error {
		dumped = append(dumped, k)
		return nil
	}})
	contract.Load(t, d, counting(alloc(t, d, 4096), 3))
	require.Len(t, dumped, 1)
	assert.Equal(t, device.FormatC, dumped[0].Format)
	assert.Equal(t, count().Source, string(dumped[0].Code))
}
