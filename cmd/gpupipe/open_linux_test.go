package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPreferred(t *testing.T) {
	for want, kinds := range map[device.Kind][]device.Kind{
		device.Discrete:   {device.Integrated, device.Discrete, device.CPU},
		device.Integrated: {device.Software, device.Integrated, device.CPU},
		device.Virtual:    {device.CPU, device.Virtual},
		device.CPU:        {device.Software, device.CPU},
		device.Software:   {device.Null, device.Software, device.Software},
	} {
		var infos []device.Info
		for _, k := range kinds {
			infos = append(infos, device.Info{Kind: k})
		}
		assert.Equal(t, want, infos[preferred(infos)].Kind)
	}
}

// withoutCompiler hides the machine's compilers, or makes them fail.
func withoutCompiler(t *testing.T, script string) {
	dir := t.TempDir()
	if script != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cc"), []byte("#!/bin/sh\n"+script), 0o755))
	}
	t.Setenv("PATH", dir)
	t.Setenv("CC", "")
}

// Without a GPU, a machine without a compiler that works uses a software adapter, with a note.
func TestNoCompiler(t *testing.T) {
	gpu, err := (&app{}).defaultDevice()
	require.NoError(t, err)
	if gpu.Kind.GPU() {
		t.Skip(gpu.Name + " is used whether or not there is a compiler")
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for script, why := range map[string]string{
		"":                                    "no C compiler found: looked for $CC, cc, gcc and clang (apt install gcc installs one)",
		"echo 'fatal error: no room'; exit 1": "the C compiler does not work: ",
		"[ $1 = --version ] && echo cc 1 && exit; echo 'error: lost'; exit": " reported success, but its result is unusable: there is no library",
	} {
		withoutCompiler(t, script)
		code, out, errs := command("selftest", "--quick", "--json", "--filter", "silu")
		require.Equal(t, exitOK, code, errs)
		assert.Contains(t, out, `"name":"webgpu:0"`)
		assert.Equal(t, 1, strings.Count(errs, "gpupipe: no native code on the CPU: "), errs)
		assert.Contains(t, strings.Join(strings.Fields(errs), " "), why)
		assert.Contains(t, errs, "webgpu:0")

		code, out, errs = command("devices")
		require.Equal(t, exitOK, code, errs)
		assert.NotContains(t, out, "cpu:0")
		assert.Contains(t, out, "computes on the CPU; used by default")
		assert.Contains(t, errs, why)

		code, _, errs = command("selftest", "--device", "cpu:0", "--quick", "--filter", "silu")
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "gpupipe: cpu:0: ")
		assert.Contains(t, strings.Join(strings.Fields(errs), " "), why[1:])
	}
}

func TestThreadsOfTheCPU(t *testing.T) {
	for name, threads := range map[string]int{"cpu:0/1": 1, "cpu/3": 3} {
		code, out, errs := command("selftest", "--device", name, "--quick", "--json", "--filter", "silu")
		require.Equal(t, exitOK, code, errs)
		var report selftestReport
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		assert.Equal(t, "cpu:0", report.Device.Name)
		assert.Equal(t, threads, report.Device.Threads)
	}
	for name, want := range map[string]string{
		"cpu:1":      "cpu:1: no such device; there are: cpu:0",
		"cpu:0/5000": `device "cpu:0/5000": found 5000 threads, expected 1 to 1024`,
		"webgpu:0/2": "found a number of threads, which only cpu:0 has",
	} {
		code, _, errs := command("selftest", "--device", name)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, want)
	}
}

// The number of threads of a rank is a part of its device's name, and ranks with more threads are faster.
func TestPlanKeepsThreads(t *testing.T) {
	code, out, errs := command(planArgs("--stages", "2", "--modelled", "--set", "pipeline.devices=[cpu:0/1, cpu:0/3]")...)
	require.Equal(t, exitOK, code, errs)
	assert.Regexp(t, `device +cpu:0/1: .*, 1 thread `, out)
	assert.Regexp(t, `device +cpu:0/3: .*, 3 threads `, out)
	assert.Regexp(t, `pipeline\.devices=\[(cpu:0/1,cpu:0/3|cpu:0/3,cpu:0/1)\]`, out)
}

// All devices of a command share one compiler, which is asked for its version once.
func TestCompilerIsFoundOnce(t *testing.T) {
	compiler, err := exec.LookPath("cc")
	require.NoError(t, err)
	dir := t.TempDir()
	wrapper, asked := filepath.Join(dir, "wrapper"), filepath.Join(dir, "asked")
	script := fmt.Sprintf("#!/bin/sh\n[ $1 = --version ] && echo >> %s\nexec %s \"$@\"\n", asked, compiler)
	require.NoError(t, os.WriteFile(wrapper, []byte(script), 0o755))
	t.Setenv("CC", wrapper)
	t.Setenv("XDG_CACHE_HOME", dir)
	code, _, errs := command("selftest", "--device", "cpu:0/1", "--device", "cpu:0/2", "--quick", "--filter", "silu")
	require.Equal(t, exitOK, code, errs)
	b, err := os.ReadFile(asked)
	require.NoError(t, err)
	assert.Equal(t, "\n", string(b))
}
