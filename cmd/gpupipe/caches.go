package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/bench"
	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
)

// kernelChoices opens the user's cache of timed kernels. If it cannot be kept, it warns and starts with an empty one.
func (a *app) kernelChoices(timing func(tune.Timing)) *tune.Cache {
	dir, err := os.UserCacheDir()
	if err == nil {
		var c *tune.Cache
		if c, err = tune.Open(filepath.Join(dir, "gpupipe", "kernels.json"), timing); err == nil {
			return c
		}
	}
	a.note("gpupipe: kernel choices are not kept for later runs: %v", err)
	c, err := tune.Open("", timing)
	if err != nil {
		panic(err) // nothing was read
	}
	return c
}

// measuredCosts opens the user's cache of measured costs. If it cannot be kept, it warns and starts with an empty one.
func (a *app) measuredCosts() *measure.Cache {
	dir, err := os.UserCacheDir()
	if err == nil {
		var c *measure.Cache
		if c, err = measure.OpenCache(filepath.Join(dir, "gpupipe", "costs.json")); err == nil {
			return c
		}
	}
	a.note("gpupipe: measured costs are not kept for later runs: %v", err)
	return measure.NewCache()
}

// shaderCache returns the folder for compiled shaders; "" if there can be none.
func (a *app) shaderCache() string { return a.codeCache("vulkan", vulkan.MakeCache) }

// cpuCache returns the folder for kernels compiled to native code; "" if there can be none.
func (a *app) cpuCache() string {
	if runtime.GOOS != linux {
		return ""
	}
	return a.codeCache("cpu", cpu.MakeCache)
}

// hookCache returns the folder for compiled hooks; "" if there can be none.
func (a *app) hookCache() string { return a.codeCache("hooks", codecache.Make) }

// codeCache returns a folder of the user's for machine code. If it cannot be created, or others may write to it, it
// warns once and returns "".
func (a *app) codeCache(name string, prepare func(dir string) error) string {
	dir, err := os.UserCacheDir()
	if err == nil {
		dir = filepath.Join(dir, "gpupipe", name)
		err = prepare(dir)
	}
	if err == nil {
		return dir
	}
	a.noteOnce(name, "gpupipe: compiled code (%s) is not kept for later runs: %v", name, err)
	return ""
}

// noteOnce writes a note, unless it wrote one of that name before.
func (a *app) noteOnce(name, format string, args ...any) {
	if _, warned := a.warned.LoadOrStore(name, true); !warned {
		a.note(format, args...)
	}
}

// measuredPeak is how many FLOP/s a device computes at most. It is measured once for each device and kept in a file of
// the user's. A file that cannot be read or written only costs time.
func (a *app) measuredPeak(dev device.Device) (float64, error) {
	key, err := json.Marshal(dev.Info())
	if err != nil {
		return 0, err
	}
	known, path := map[string]float64{}, ""
	if dir, err := os.UserCacheDir(); err == nil {
		path = filepath.Join(dir, "gpupipe", "peaks.json")
		if kept, err := jsonfile.ReadCache[float64](path); err == nil {
			known = kept
		}
	}
	if peak, ok := known[string(key)]; ok {
		return peak, nil
	}
	peak, err := bench.PeakFLOPS(dev, bench.Options{Quick: true})
	if err != nil || path == "" {
		return peak, err
	}
	known[string(key)] = peak
	_ = os.MkdirAll(filepath.Dir(path), 0o777) // writing reports the error
	if err := jsonfile.Write(path, known, "  "); err != nil {
		a.noteOnce("peaks", "gpupipe: the peak of %s is not kept for later runs: %v", dev.Info().Name, err)
	}
	return peak, nil
}
