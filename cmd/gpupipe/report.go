package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/report"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/suggest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/runtime/device"
)

type reportCommand struct {
	Out    string        `help:"Files to write, without .md and .json. Default: gpupipe-report." default:"gpupipe-report" placeholder:"NAME"`
	Budget time.Duration `help:"Time for everything. Default: 10m." default:"10m" placeholder:"DURATION"`
	Device []string      `help:"Device to test: cpu:0, webgpu:0, vulkan:0. Repeatable; by default all devices." placeholder:"NAME" sep:"none"`
	Models []string      `help:"Presets to train. Default: tiny, and on GPUs smollm2-135m." placeholder:"PRESET,..."`
	SeqLen int           `help:"Tokens in a sequence that is trained on. Default: 128 for tiny, else 1024." placeholder:"TOKENS"`
}

func (c *reportCommand) Help() string {
	return `Runs a quick selftest and verify, a benchmark, and profiled training steps of the presets tiny and smollm2-135m on every device. It
writes one Markdown file and one JSON file with the machine's GPUs and drivers, limits, chosen kernels, figures and failures.

Each section runs in a process of its own with a share of --budget, so a driver that crashes or hangs costs that section only.
Both files are written after each section. A CPU gets a quarter of a GPU's time, and a software adapter smaller sections. The files hold no name of
the machine or its user. Exits with 1 if a section failed or did not finish.

Examples:
  gpupipe report
  gpupipe report --budget 5m --device vulkan:0 --out my-gpu
  gpupipe report --models smollm2-135m --seq-len 64`
}

const (
	minBudget     = 20 * time.Second
	devicesLimit  = time.Minute
	gpuWeight     = 4 // a GPU's share of the time; a CPU's share is 1
	shownKernels  = 12
	profiledSteps = "train.steps=5"
	smallModel    = "tiny"         // trained on every device
	largeModel    = "smollm2-135m" // trained on GPUs
	largeSeqLen   = 1024
)

var errReport = errors.New("not everything passed")

func (c *reportCommand) Run(a *app) error {
	if err := c.validate(); err != nil {
		return usererror.New(err)
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
	list := report.Task{Name: "devices", Args: []string{"devices", "--json"}, Weight: 1,
		Read: func(output []byte, s *report.Section) error {
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
		weights := weightOf(d.Kind)
		within := time.Until(end) * time.Duration(weights) / time.Duration(max(1, weightsFrom(c.order(found), d.Name)))
		subject := r.Subject(d.Name, fmt.Sprintf("%s: %s (%s)", d.Name, d.Hardware(), d.Kind))
		if err := r.Run(a.ctx, runner, subject, c.tasks(d, dir), within); err != nil {
			return err
		}
	}
	return c.finish(a, r, len(found))
}

func (c *reportCommand) validate() error {
	if c.Budget < minBudget {
		return fmt.Errorf("--budget: found %v, expected %v or more", c.Budget, minBudget)
	}
	for _, name := range c.Device {
		if _, err := parseDevice(name); err != nil {
			return err
		}
	}
	for _, name := range c.Models {
		if _, err := model.Preset(name); err != nil {
			return fmt.Errorf("--models: %w%s", err, suggest.DidYouMean(name, model.Presets()))
		}
	}
	if c.SeqLen < 0 {
		return fmt.Errorf("--seq-len: found %d, expected 1 or more", c.SeqLen)
	}
	return nil
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
		return usererror.New(errors.New(noAdapter(runtime.GOOS)))
	}
	if len(r.Problems()) > 0 {
		return errReport
	}
	return nil
}

// order returns the devices to test: the devices that the user asked for, GPUs before CPUs. A name that no device has
// stands for itself, so that opening it reports the fault.
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
	slices.SortStableFunc(chosen, func(a, b deviceLine) int { return listOrder(a.Kind) - listOrder(b.Kind) })
	return chosen
}

// weightOf returns the share of a kind of device in the time.
func weightOf(k device.Kind) int {
	if k.GPU() {
		return gpuWeight
	}
	return 1
}

// weightsFrom sums the weights of the devices from a name on.
func weightsFrom(devices []deviceLine, name string) (sum int) {
	from := slices.IndexFunc(devices, func(d deviceLine) bool { return d.Name == name })
	for _, d := range devices[from:] {
		sum += weightOf(d.Kind)
	}
	return sum
}

// tasks are the sections of a device. Training steps come before the benchmark: they are what users ask for.
func (c *reportCommand) tasks(d deviceLine, dir string) []report.Task {
	name, software := d.Name, d.Kind == device.Software
	verify := []string{"verify", "--quick", "--batches", "6", "--json", "--device", name}
	measure := []string{"bench", "--quick", "--json", "--device", name, "--filter", "dispatch|matmul|attention|step"}
	if software {
		verify = append(verify, "--filter", "2bw")
		measure = append(measure[:len(measure)-1], "dispatch", "--static")
	}
	tasks := []report.Task{
		{Name: "selftest", Weight: 4, Args: []string{"selftest", "--quick", "--json", "--within", report.Limit, "--device", name},
			Read: readSelftest},
		{Name: "verify", Weight: 3, Args: verify, Read: readVerify},
	}
	var tuned []report.Task // after the benchmark
	models := c.Models
	if len(models) == 0 {
		models = []string{smallModel, largeModel}
	}
	for _, preset := range models {
		static := stepTask(preset, name, dir, c.SeqLen, true)
		switch {
		case preset == smallModel && !software:
			static = stepTask(preset, name, dir, c.SeqLen, false)
		case software && len(c.Models) == 0 && preset == largeModel:
			static.Skip = "a software adapter is too slow for it; --models trains it"
		case d.Kind.GPU():
			tuned = append(tuned, stepTask(preset, name, dir, c.SeqLen, false))
		}
		tasks = append(tasks, static)
	}
	tasks = append(tasks, report.Task{Name: "bench", Weight: 3, Args: measure, Read: readBench})
	return append(tasks, tuned...)
}

// stepTask trains a few steps of a preset and profiles two of them, with the default kernels or with the kernels that
// timing chooses. A model other than the small one trains on one sequence and leaves a checkpoint of three f32 values
// for each parameter, the weight and AdamW's two moments, while the section lasts.
func stepTask(preset, name, dir string, seqLen int, static bool) report.Task {
	title, tune, run := "profiled step of "+preset, "--tune", filepath.Join(dir, strings.NewReplacer(":", "-").Replace(preset+"-"+name))
	if static {
		title, tune, run = title+", default kernels", "--no-tune", run+"-static"
	}
	set := []string{"model.preset=" + preset, "data.train=[" + filepath.Join(dir, "text.txt") + "]", profiledSteps, "data.val_fraction=0",
		"train.microbatches=1", "optimizer.name=adamw", "run.dir=" + run}
	task := report.Task{Name: title, Weight: 2}
	if preset == smallModel {
		set = append(set, "train.batch_size=8")
	} else {
		config, err := model.Preset(preset)
		if err != nil {
			panic(err) // validate knows it
		}
		task.Weight, task.Disk = 3, 3*4*config.Count()+64<<20
		set = append(set, "train.batch_size=1", fmt.Sprintf("model.vocab_size=%d", config.VocabSize))
		seqLen = cmp.Or(seqLen, largeSeqLen)
	}
	if seqLen > 0 {
		set = append(set, fmt.Sprintf("model.seq_len=%d", seqLen))
	}
	task.Args = []string{"train", "--profile", "--json", tune, "--device", name}
	for _, s := range set {
		task.Args = append(task.Args, "--set", s)
	}
	task.Read = func(output []byte, s *report.Section) error {
		defer os.RemoveAll(run)
		return readTraining(output, filepath.Join(run, "profile.json"), s)
	}
	return task
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
