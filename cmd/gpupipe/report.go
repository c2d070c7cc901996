package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/report"
)

type reportCommand struct {
	Out    string        `help:"Files to write, without .md and .json. Default: gpupipe-report." default:"gpupipe-report" placeholder:"NAME"`
	Budget time.Duration `help:"Time for everything. Default: 10m." default:"10m" placeholder:"DURATION"`
	Device []string      `help:"Device to test: webgpu:0, vulkan:0. Repeatable; by default all devices." placeholder:"NAME" sep:"none"`
}

func (c *reportCommand) Help() string {
	return `Runs a quick selftest and verify, a benchmark, and profiled training steps of the presets tiny and smollm2-135m on every device. It
writes one Markdown file and one JSON file with the machine's GPUs and drivers, limits, chosen kernels, figures and failures.

Each section runs in a process of its own with a share of --budget, so a driver that crashes or hangs costs that section only.
Both files are written after each section. A software adapter gets smaller sections and a quarter of a GPU's time. The files hold no name of
the machine or its user. Exits with 1 if a section failed or did not finish.

Examples:
  gpupipe report
  gpupipe report --budget 5m --device vulkan:0 --out my-gpu`
}

const (
	minBudget     = 20 * time.Second
	devicesLimit  = time.Minute
	gpuWeight     = 4 // a GPU's share of the time; that of a software adapter is 1
	shownKernels  = 12
	profiledSteps = "train.steps=5"
)

var errReport = errors.New("not everything passed")

func (c *reportCommand) Run(a *app) error {
	if c.Budget < minBudget {
		return usererror.New(fmt.Errorf("--budget %v: expected %v or more", c.Budget, minBudget))
	}
	for _, name := range c.Device {
		if _, _, _, err := parseDevice(name); err != nil {
			return usererror.New(err)
		}
	}
	dir, err := os.MkdirTemp("", "gpupipe-report-")
	if err != nil {
		return usererror.New(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "text.txt"), reportText(), 0o600); err != nil {
		return usererror.New(err)
	}
	program, err := thisProgram()
	if err != nil {
		return err
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return err
	}
	end := time.Now().Add(c.Budget)
	r := report.New(c.Out, version.String(), c.Budget)
	if err := r.Write(); err != nil {
		return usererror.New(err)
	}
	runner := report.Runner{Program: program, Dir: dir}
	runner.Progress = func(task report.Task, limit time.Duration) {
		a.note("%s  (at most %v)", task.Name, limit.Round(time.Second))
	}
	machine := r.Subject("machine", "Devices")
	var found []deviceLine
	list := report.Task{Name: "devices", Args: []string{"devices", "--json"}, Weight: 1, Read: func(output []byte, s *report.Section) error {
		if err := json.Unmarshal(output, &found); err != nil {
			return fmt.Errorf("gpupipe devices printed no list of devices: %w", err)
		}
		s.Tables = deviceTables(found)
		return nil
	}}
	if err := r.Run(a.ctx, runner, machine, []report.Task{list}, min(devicesLimit, c.Budget/2)); err != nil {
		return err
	}
	for _, d := range c.order(found) {
		weights := gpuWeight
		if d.Kind == device.Software {
			weights = 1
		}
		within := time.Until(end) * time.Duration(weights) / time.Duration(max(1, weightsFrom(c.order(found), d.Name)))
		subject := r.Subject(d.Name, fmt.Sprintf("%s: %s (%s)", d.Name, d.Adapter, d.Kind))
		if err := r.Run(a.ctx, runner, subject, reportTasks(d, dir), within); err != nil {
			return err
		}
	}
	return c.finish(a, r, len(found))
}

// finish writes the report for the last time and says what to do with it.
func (c *reportCommand) finish(a *app, r *report.Report, devices int) error {
	r.Done = true
	if err := r.Write(); err != nil {
		return usererror.New(err)
	}
	for _, p := range r.Problems() {
		a.printf("%s\n", p)
	}
	markdown, data := r.Files()
	a.printf("The report is in %s and %s. To share it, send both files.\n", markdown, data)
	if devices == 0 {
		return usererror.New(errors.New(noAdapter))
	}
	if len(r.Problems()) > 0 {
		return errReport
	}
	return nil
}

// order returns the devices to test: those asked for, GPUs before software adapters. A name that no device has stands
// for itself, so that opening it reports what is wrong.
func (c *reportCommand) order(found []deviceLine) []deviceLine {
	chosen := slices.Clone(found)
	if len(c.Device) > 0 {
		chosen = nil
		for _, name := range c.Device {
			i := slices.IndexFunc(found, func(d deviceLine) bool { return d.Name == name })
			if i < 0 {
				chosen = append(chosen, deviceLine{Info: device.Info{Name: name, Adapter: "not listed", Kind: device.Software}})
				continue
			}
			chosen = append(chosen, found[i])
		}
	}
	slices.SortStableFunc(chosen, func(a, b deviceLine) int { return softwareLast(a.Kind) - softwareLast(b.Kind) })
	return chosen
}

func softwareLast(k device.Kind) int {
	if k == device.Software {
		return 1
	}
	return 0
}

// weightsFrom sums the weights of the devices from a name on.
func weightsFrom(devices []deviceLine, name string) (sum int) {
	from := slices.IndexFunc(devices, func(d deviceLine) bool { return d.Name == name })
	for _, d := range devices[from:] {
		if d.Kind == device.Software {
			sum++
		} else {
			sum += gpuWeight
		}
	}
	return sum
}

// reportTasks are the sections of a device. Training steps come before the benchmark: they are what users ask for.
func reportTasks(d deviceLine, dir string) []report.Task {
	name, software := d.Name, d.Kind == device.Software
	verify := []string{"verify", "--quick", "--batches", "6", "--json", "--device", name}
	measure := []string{"bench", "--quick", "--json", "--device", name, "--filter", "dispatch|matmul|attention|step"}
	tooSlow := ""
	if software {
		verify = append(verify, "--filter", "2bw")
		measure = append(measure[:len(measure)-1], "dispatch", "--static")
		tooSlow = "a software adapter is too slow for it"
	}
	return []report.Task{
		{Name: "selftest", Weight: 4, Args: []string{"selftest", "--quick", "--json", "--within", report.Limit, "--device", name}, Read: readSelftest},
		{Name: "verify", Weight: 3, Args: verify, Read: readVerify},
		stepTask("tiny", name, dir, 2, "", software, "train.batch_size=8"),
		stepTask("smollm2-135m", name, dir, 3, tooSlow, true, "train.batch_size=1", "model.seq_len=1024", "model.vocab_size=49152"),
		{Name: "bench", Weight: 3, Args: measure, Read: readBench},
		stepTask("smollm2-135m", name, dir, 3, tooSlow, false, "train.batch_size=1", "model.seq_len=1024", "model.vocab_size=49152"),
	}
}

// stepTask trains a few steps of a preset and profiles two of them, with default kernels or with those that timing
// chooses.
func stepTask(preset, name, dir string, weight int, skip string, static bool, set ...string) report.Task {
	title, tune, run := "profiled step of "+preset, "--tune", filepath.Join(dir, strings.NewReplacer(":", "-").Replace(preset+"-"+name))
	if static {
		title, tune, run = title+", default kernels", "--no-tune", run+"-static"
	}
	args := []string{"train", "--profile", "--json", tune, "--device", name}
	for _, s := range append([]string{"model.preset=" + preset, "data.train=[" + filepath.Join(dir, "text.txt") + "]", profiledSteps, "train.eval_every=0",
		"train.microbatches=1", "optimizer.name=adamw", "run.dir=" + run}, set...) {
		args = append(args, "--set", s)
	}
	return report.Task{Name: title, Args: args, Weight: weight, Skip: skip, Read: func(output []byte, s *report.Section) error {
		defer os.RemoveAll(run) // a checkpoint takes gigabytes
		return readTraining(output, filepath.Join(run, "profile.json"), s)
	}}
}

// reportText makes text to train on.
func reportText() []byte {
	words := strings.Fields("the a one some pipeline stage device kernel step weight gradient batch token rank model computes sends reads writes waits for with from to and")
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < 1<<20 {
		for range 5 + rng.IntN(10) {
			b.WriteString(words[rng.IntN(len(words))])
			b.WriteByte(' ')
		}
		b.WriteString(".\n")
	}
	return []byte(b.String())
}
