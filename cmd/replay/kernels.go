package main

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/gpupipe/gpupipe/shaders/spirv"
)

// kernels are texts of kernels, and what says how they are run.
type kernels struct {
	Kernels map[string]string // the hash of a text, by its place: program, device, group, variant and pass
	Texts   map[string]string // by hash

	mu sync.Mutex
}

func newKernels() *kernels { return &kernels{Kernels: map[string]string{}, Texts: map[string]string{}} }

// load reads the kernels that save wrote.
func load(path string) (*kernels, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	k := newKernels()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = gob.NewDecoder(z).Decode(k)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

func (k *kernels) save(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestSpeed) // a level that there is
	return errors.Join(gob.NewEncoder(z).Encode(k), z.Close(), f.Close())
}

// add keeps a text.
func (k *kernels) add(key, text string) {
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:8])
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Kernels[key], k.Texts[hash] = hash, text
}

// platform is a kind of device.
type platform struct {
	name   string
	limits target.Limits
	spirv  bool // the chosen kernels are compiled to SPIR-V, too
}

// platforms are the kinds of devices that kernels are written for, with memory for every model.
func platforms() []platform {
	with := func(change func(l *target.Limits)) target.Limits {
		l := target.DefaultLimits()
		l.MaxBindingSize, l.MaxBufferSize = 1<<50, 1<<50
		change(&l)
		return l
	}
	gpu := func(l *target.Limits) {
		l.MaxWorkgroupMemory, l.MaxInvocations, l.MaxWorkgroupSize = 48<<10, 1024, [3]int{1024, 1024, 64}
	}
	return []platform{
		{"webgpu", with(func(*target.Limits) {}), false},
		{"software", with(func(l *target.Limits) { l.Software = true }), true},
		{"vulkan", with(func(l *target.Limits) {
			gpu(l)
			l.SubgroupSize, l.Assembly = 32, true
			for _, input := range []string{"f16", "bf16"} {
				l.Cooperative = append(l.Cooperative, target.CooperativeMatrix{M: 16, N: 16, K: 16, Input: input, Result: "f32"})
				l.Flexible = append(l.Flexible, target.FlexibleMatrix{M: 32, N: 32, K: 16, Input: input, Result: "f32", Invocations: 256,
					Largest: 256})
			}
		}), false},
		{"cpu", with(func(l *target.Limits) {
			l.MaxBindings, l.OffsetAlignment, l.MaxDispatchDimension = 64, 64, 1<<24-1
			l.Software, l.Native = true, true
			l.Cooperative = []target.CooperativeMatrix{target.AMX, target.AVX512, target.NEON}
		}), false},
	}
}

// recorder notes the variants among which kernels are chosen.
type recorder struct {
	all   *kernels
	place string
	count map[string]int // by label
}

// Choose implements exec.Chooser.
func (r *recorder) Choose(_ device.Device, label string, candidates []shaders.Kernel, fallback int) (int, error) {
	r.add(label, candidates...)
	return fallback, nil
}

func (r *recorder) add(label string, variants ...shaders.Kernel) {
	r.count[label]++
	for _, k := range variants {
		values := map[*graph.Value]int{}
		for i, p := range k.Passes {
			key := fmt.Sprintf("%s: %s #%d, %s, pass %d", r.place, label, r.count[label], k.Name, i)
			r.all.add(key, p.Source)
			r.all.add(key+", its run", runText(p, values))
		}
	}
}

// runText says how a pass is run: its workgroups, and its arguments. values numbers the values of the kernel's passes.
func runText(p shaders.Pass, values map[*graph.Value]int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "groups %v of %v, workgroup memory %d, inside %v\n", p.Groups, p.Workgroup, p.WorkgroupMemory, p.Inside)
	for _, a := range p.Args {
		if a.Value == nil {
			fmt.Fprintf(&s, "scratch %d, %d bytes from %d\n", a.Scratch, a.Size, a.Offset)
			continue
		}
		if _, ok := values[a.Value]; !ok {
			values[a.Value] = len(values)
		}
		fmt.Fprintf(&s, "value %d %v, grouped %d\n", values[a.Value], a.Value.Type, a.Grouped)
	}
	return s.String()
}

// lower adds the kernels of a program for a platform.
func (k *kernels) lower(name string, g *graph.Graph, p platform, compiler *spirv.Compiler) error {
	dev := null.New(null.Options{Limits: &p.limits})
	r := &recorder{all: k, place: name + " " + p.name, count: map[string]int{}}
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"": g}, exec.Options{Tune: r})
	if err != nil {
		return fmt.Errorf("%s: %w", r.place, err)
	}
	chosen, err := plan.Chosen("")
	if err != nil {
		return err
	}
	for i, info := range plan.Kernels("") {
		r.add(info.Label+" chosen", chosen[i])
		if compiler == nil {
			continue
		}
		for n, pass := range chosen[i].Passes {
			m, err := compiler.Compile(pass.Source, spirv.ZeroWorkgroup)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", r.place, info.Label, err)
			}
			k.add(fmt.Sprintf("%s SPIR-V: %s, pass %d", r.place, info.Label, n), words(m.Code))
		}
	}
	return nil
}

// words prints the words of a module, one a line.
func words(code []uint32) string {
	var s strings.Builder
	for _, w := range code {
		fmt.Fprintf(&s, "%08x\n", w)
	}
	return s.String()
}
