package matmul

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// nativeBuild collects kernels to compile into one program.
type nativeBuild struct {
	dir      string
	prelude  string   // that each unit begins with
	kernels  []string // each text once
	commands []string // files of the passes to run
}

func newNativeBuild(t testing.TB) *nativeBuild {
	prelude, err := os.ReadFile("../native/prelude.h")
	require.NoError(t, err)
	b := &nativeBuild{dir: t.TempDir(), prelude: string(prelude)}
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "prelude.h"), prelude, 0o600))
	return b
}

// kernel returns the index of a kernel's text. Passes of equal text, such as those that pack, share one kernel.
func (b *nativeBuild) kernel(text string) int {
	if i := slices.Index(b.kernels, text); i >= 0 {
		return i
	}
	b.kernels = append(b.kernels, text)
	return len(b.kernels) - 1
}

// add writes the file that runs a kernel on a case's operands, and returns the name of its results.
func (b *nativeBuild) add(t testing.TB, k Kernel, c nativeCase) string {
	var f bytes.Buffer
	number := func(x ...int) {
		for _, v := range x {
			require.NoError(t, binary.Write(&f, binary.LittleEndian, uint32(v)))
		}
	}
	size := 4
	if c.spec.TypeC.Float16() {
		size = 2
	}
	buffers := [][]byte{A: c.a, B: c.b, C: make([]byte, size*len(c.want)), Scratch: make([]byte, k.Scratch)}
	bias, err := binary.Append(nil, binary.LittleEndian, c.bias)
	require.NoError(t, err)
	var offsets []byte
	for _, x := range offsetsOf(c.rows) {
		offsets = binary.LittleEndian.AppendUint32(offsets, x)
	}
	buffers = append(buffers, offsets, bias)
	number(len(buffers))
	for _, x := range buffers {
		number(len(x))
		f.Write(append(x[:len(x):len(x)], make([]byte, -len(x)&3)...))
	}
	number(len(k.Passes))
	for _, p := range k.Passes {
		bindings := p.Bindings
		if p.Epilogue != nil {
			bindings = append(bindings[:len(bindings):len(bindings)], Binding{Operand: Offsets + 1})
		}
		number(b.kernel(p.Source()), p.Groups[0]*p.Groups[1]*p.Groups[2], len(bindings))
		for _, x := range bindings {
			if x.Operand != Scratch {
				x.Size = len(buffers[x.Operand])
			}
			number(int(x.Operand), x.Offset, x.Size)
		}
	}
	name := filepath.Join(b.dir, fmt.Sprintf("run%d", len(b.commands)))
	require.NoError(t, os.WriteFile(name, f.Bytes(), 0o600))
	b.commands = append(b.commands, name)
	return name + ".out"
}

// run compiles all kernels and runs them.
func (b *nativeBuild) run(t testing.TB, cc string, flags ...string) {
	out, err := exec.Command(b.link(t, cc, "run.c", nil, flags...), b.commands...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// link compiles all kernels and links them with the main program of testdata.
func (b *nativeBuild) link(t testing.TB, cc, main string, libraries []string, flags ...string) string {
	flags = append(flags, "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
		"-fopenmp-simd", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Wno-psabi", "-Wno-unknown-warning-option",
		"-Wno-aggressive-loop-optimizations", "-Werror")
	table := "#include \"prelude.h\"\ntypedef void kernel(const gp_arg *, u32, u32, const u32 *);\n"
	var list strings.Builder
	objects := make([]string, len(b.kernels))
	errs := make([]error, len(b.kernels))
	var wait sync.WaitGroup
	slots := make(chan bool, 2)
	for i, text := range b.kernels {
		table += fmt.Sprintf("kernel gp_%d;\n", i)
		fmt.Fprintf(&list, "gp_%d, ", i)
		file := filepath.Join(b.dir, fmt.Sprintf("kernel%d.c", i))
		objects[i] = file + ".o"
		head := fmt.Sprintf("#define KERNEL void gp_%d(const gp_arg *args, u32 first, u32 last, const u32 *grid)\n", i)
		require.NoError(t, os.WriteFile(file, []byte(b.prelude+head+text), 0o600))
		wait.Go(func() {
			slots <- true
			out, err := exec.Command(cc, append(flags, "-c", "-o", objects[i], file)...).CombinedOutput()
			if err != nil {
				errs[i] = fmt.Errorf("%w: %s", err, out)
			}
			<-slots
		})
	}
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	file, program := filepath.Join(b.dir, "table.c"), filepath.Join(b.dir, "program")
	require.NoError(t, os.WriteFile(file, []byte(table+"kernel *kernels[] = {"+list.String()+"};\n"), 0o600))
	args := append(flags, "-I", b.dir, "-o", program, filepath.Join("testdata", main), file)
	out, err := exec.Command(cc, append(append(args, objects...), libraries...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
