package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// noAdapter is the error of a system without an adapter of a GPU.
func noAdapter(goos string) string {
	if goos == linux {
		return "no device found: install the GPU's Vulkan driver, or use cpu:0"
	}
	return "no device found: install the GPU's driver"
}

// openDevice opens a device by name: "cpu:0" is the CPU, "webgpu:0" WebGPU's first adapter, "vulkan:0" Vulkan's, and
// "null" executes nothing. A name without a number selects the first adapter that is hardware, else the first. An empty
// name selects the default device.
func (a *app) openDevice(name string) (device.Device, error) {
	n, err := a.resolve(name)
	if err != nil {
		return nil, err
	}
	dump, err := kernelDump()
	if err != nil {
		return nil, err
	}
	switch n.Backend {
	case "null":
		return null.New(null.Options{Name: fmt.Sprintf("null:%d", n.Index), Dump: dump}), nil
	case device.CPUBackend:
		t, err := a.cpu.find(a)
		if err != nil {
			return nil, fmt.Errorf("cpu:%d: %w", n.Index, err)
		}
		return cpu.Open(cpu.Options{Index: n.Index, Threads: n.Threads, Toolchain: t, Dump: dump})
	case "webgpu":
		infos, err := webgpu.Adapters()
		if err == nil {
			n.Index, err = choose(name, infos, n)
		}
		if err != nil {
			return nil, err
		}
		return webgpu.Open(n.Index, webgpu.Options{Dump: dump})
	case "vulkan":
		infos, _, err := vulkanAdapters()
		if err == nil && len(infos) > 0 { // else opening it reports the missing file
			n.Index, err = choose(name, infos, n)
		}
		if err != nil {
			return nil, err
		}
		return vulkan.Open(n.Index, vulkan.Options{CacheDir: a.shaderCache(), Dump: dump})
	}
	panic("parseDevice accepted an unknown backend")
}

// resolve parses a name. If it has no backend, resolve chooses one.
func (a *app) resolve(name string) (device.Name, error) {
	n, err := parseDevice(name)
	if err != nil || n.Backend != "" {
		return n, err
	}
	best, err := a.defaultDevice()
	if err != nil {
		return n, err
	}
	chosen, err := device.ParseName(best.Name)
	if chosen.Backend == device.CPUBackend {
		chosen.Threads = n.Threads
	}
	return chosen, err
}

// parseDevice splits a name, and refuses one that cannot be a device's.
func parseDevice(name string) (device.Name, error) {
	n, err := device.ParseName(name)
	if err == nil && !slices.Contains([]string{"", device.CPUBackend, "webgpu", "vulkan", "null"}, n.Backend) {
		err = unknownBackend(name, runtime.GOOS)
	}
	return n, err
}

func unknownBackend(name, goos string) error {
	return fmt.Errorf("device %q: unknown backend, %s", name,
		onSystem(goos, "expected cpu:0, webgpu:N, vulkan:N or null (gpupipe devices lists them)"))
}

// defaultDevice returns the device that is used if none is named: the first GPU of WebGPU, else the CPU, else a
// software adapter. For the last it notes why the CPU is none.
func (a *app) defaultDevice() (device.Info, error) {
	gpus, err := webgpu.Adapters()
	if err != nil {
		return device.Info{}, err
	}
	all := gpus
	var noCPU error
	if len(gpus) == 0 || !gpus[preferred(gpus)].Kind.GPU() {
		var t *cpu.Toolchain
		if t, noCPU = a.cpu.find(a); noCPU == nil {
			all = append(slices.Clone(gpus), t.Adapter())
		}
	}
	if len(all) == 0 {
		return device.Info{}, without(noCPU)
	}
	best := all[preferred(all)]
	if !best.Kind.GPU() && noCPU != nil && !errors.Is(noCPU, cpu.ErrSystem) {
		a.noteOnce("cpu:0", "gpupipe: no native code on the CPU: %v. %s (%s) computes instead, which is many times slower", noCPU,
			best.Name, best.Adapter)
	}
	return best, nil
}

// toolchain finds the CPU's compiler once.
type toolchain struct {
	once  sync.Once
	found *cpu.Toolchain
	err   error
}

func (t *toolchain) find(a *app) (*cpu.Toolchain, error) {
	t.once.Do(func() { t.found, t.err = cpu.FindToolchain(a.cpuCache()) })
	return t.found, t.err
}

// without is the error of a machine that has no device. noCPU says why its CPU is none.
func without(noCPU error) error {
	if noCPU == nil || errors.Is(noCPU, cpu.ErrSystem) {
		return errors.New(noAdapter(runtime.GOOS))
	}
	return fmt.Errorf("no device found: there is no GPU, and no native code on the CPU: %w", noCPU)
}

// choose returns the index of the adapter that a name selects.
func choose(name string, infos []device.Info, n device.Name) (int, error) {
	switch {
	case len(infos) == 0:
		return 0, errors.New(noAdapter(runtime.GOOS))
	case !n.Numbered:
		return preferred(infos), nil
	case n.Index >= len(infos):
		return 0, fmt.Errorf("device %q: no such device, expected one of %s", name, names(infos))
	}
	return n.Index, nil
}

// vulkanAdapters lists Vulkan's adapters with their properties.
func vulkanAdapters() ([]device.Info, []vulkan.Details, error) {
	adapters, err := vulkan.Adapters()
	var infos []device.Info
	var details []vulkan.Details
	for _, a := range adapters {
		infos, details = append(infos, a.Info), append(details, a.Details)
	}
	return infos, details, err
}

// preferred returns the index of the first device of the best kind: discrete, integrated and virtual GPUs, CPUs,
// software adapters.
func preferred(infos []device.Info) (best int) {
	for i, d := range infos {
		if d.Kind.Order() < infos[best].Kind.Order() {
			best = i
		}
	}
	return best
}

func names(infos []device.Info) string {
	var ns []string
	for _, d := range infos {
		ns = append(ns, d.Name)
	}
	return strings.Join(ns, ", ")
}
