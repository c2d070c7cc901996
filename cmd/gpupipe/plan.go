package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

type planCommand struct {
	Config   string   `arg:"" optional:"" hub:"shape" help:"YAML file of the run, or the folder of a run."`
	Set      []string `hub:"shape" help:"Override a key of the config; repeatable." placeholder:"SECTION.KEY=VALUE" sep:"none"`
	Stages   *int     `help:"Pipeline stages. The same as --set pipeline.stages=N."`
	Cut      []string `help:"Where each stage after the first begins: layers.4, layers.4.mlp (between its attention and its feed-forward layer) or head; numbers count the embedding, 0, the layers and the head. Default: the best cut." placeholder:"UNIT"`
	Memory   string   `help:"Memory of each device, as in 24GiB, for devices that do not report it." placeholder:"BYTES"`
	Network  string   `help:"Plan for stages on machines of their own, connected by links of this latency and bandwidth, and choose pipeline.depth for them." placeholder:"10ms,1Gbit"`
	Members  string   `help:"Plan for several machines: the folder of a run of gpupipe host, with what it has measured, or a YAML file of machines that need not exist." placeholder:"RUN|FILE"`
	GPU      string   `name:"gpu" help:"Plan for cards that need not be present, one for each rank: rtx-3090, rtx-4090, rx-7900-xtx, a100-80gb, h100, h200." placeholder:"NAME"`
	Modelled bool     `help:"Estimate times from the kernels' arithmetic and memory traffic, and run nothing."`
	Fresh    bool     `help:"Ignore times measured earlier."`
	tuneFlag
	JSON bool `help:"Print a JSON object."`
}

func (c *planCommand) Help() string {
	return `Prints the stage boundaries, the memory of each stage and the speed of each schedule. Measures the forward pass, the backward pass and
the update of the embedding, an attention layer, a feed-forward layer and the head on each kind of device, and keeps the times for later. (For a model written by a hook, it
measures each distinct unit.) A simulation of each schedule turns the times into tokens a second. Trains nothing and reads no data.
Memory and times are those of train.precision: f16 and bf16 halve most of the activations. What a stage sends to others in a batch, in
bytes, is in the formats of pipeline.wire and pipeline.wire_exchange.

With --network, stages are on machines of their own. More microbatches in flight (pipeline.depth) hide slow links, at the price of memory
and, with 2bw, of more stale microbatches: the plan lists what each depth costs.

With --members, stages are on the machines of a run of gpupipe host, whose devices and links it has measured, or on those of a file:

  machines:                                    # a rank each
    - {name: desktop}                          # like this computer's device
    - {name: server, speed: 4, memory: 24GiB}  # four times as fast
  link: 10ms,1Gbit                             # latency and bandwidth
  links:                                       # those that differ
    - {between: [desktop, server], link: "2ms,1Gbit"}

A machine's device: names another device of this computer than the default.

The plan then also says how fast each machine would be alone, and whether one alone would be faster.

A file that has uplink, downlink and latency instead of links describes machines in different homes. The plan is then one of replicas that
train on their own (pipeline.local_steps): machines of a site make pipelines, and the plan chooses how many replicas train and how seldom
they exchange what they have learned, so that no link is waited for. The share of a batch that one replica has stays what it is.

  uplink: 20Mbit                               # of machines without their own
  downlink: 100Mbit
  latency: 20ms                                # half of a round trip
  sites: [{name: lab, link: "0.2ms,10Gbit", uplink: 1Gbit, downlink: 1Gbit}]
  machines:
    - {name: anna, gpu: rtx-4090}
    - {name: ben, tokens_per_s: 20000, memory: 24GiB, uplink: 40Mbit}
    - {name: lab-1, gpu: a100-80gb, site: lab}

With --gpu, each rank has a card of that name. Nothing runs: a kernel takes the longer of its arithmetic, at 40 % of the peak that the
data sheet gives for f32 or for the matrix units, and its memory traffic, at 75 % of the bandwidth. Memory is the card's.

The device null:0 stands for a discrete GPU that is not present. Its times are estimates.

Examples:
  gpupipe plan c.yaml --stages 4
  gpupipe plan c.yaml --stages 2 --cut layers.8.mlp \
    --set pipeline.devices=[webgpu:0,webgpu:1]
  gpupipe plan --set model.preset=smollm2-135m --set train.microbatches=16 \
    --stages 4 --modelled --set pipeline.devices=[null:0] --memory 8GiB
  gpupipe plan c.yaml --stages 4 --network 10ms,1Gbit
  gpupipe plan c.yaml --members runs/a
  gpupipe plan c.yaml --members machines.yaml --set pipeline.wire=bf16
  gpupipe plan c.yaml --members examples/replicas/machines.yaml`
}

func (c *planCommand) Run(a *app) error {
	gpu, err := c.gpu()
	if err != nil {
		return err
	}
	over, err := c.machines()
	if err != nil {
		return err
	}
	if homes, ok := over.(*imaginedMachines); ok && homes.areHomes() {
		return c.planReplicas(a, homes)
	}
	config, err := c.loadFor(over)
	if err != nil {
		return err
	}
	config = ofLargestBatches(a, config)
	s := &status{app: a, silent: c.JSON}
	link, err := parseLink(c.Network)
	if err != nil {
		return usererror.Errorf("--network: %w", err)
	}
	o := measure.Options{Modelled: c.Modelled, GPU: gpu, Between: link,
		Progress: func(device, what string) { s.say("%s: timing %s", device, what) }}
	open := c.open
	if over != nil {
		o.Place, open = over.place, over.open
	}
	if gpu != nil {
		open = func(_ *app, name string) (device.Device, error) {
			name = strings.Replace(name, "null", gpu.Name, 1)
			return null.New(null.Options{Name: name, Limits: gpu.Limits(), MemoryBudget: gpu.Memory}), nil
		}
	}
	save := func() error { return nil }
	if !c.Modelled && gpu == nil {
		save = c.cache(a, &o, s)
	}
	p, err := train.CompareSchedules(a.ctx, config, func(name string) (device.Device, error) { return open(a, name) }, o)
	s.clear()
	if err != nil {
		return err
	}
	if over != nil {
		over.describe(p)
	}
	if err := save(); err != nil {
		a.note("gpupipe: %v", err)
	}
	if c.JSON {
		if err := a.printJSON(p); err != nil {
			return err
		}
	} else {
		printPlan(a, p, c.devicesToUse(p, over))
	}
	if p.RecommendedIndex < 0 {
		return usererror.Errorf("no schedule is possible: %s", p.Schedules[0].Problem)
	}
	return nil
}

// ofLargestBatches is the config with which a run has its largest batches.
func ofLargestBatches(a *app, c config.Config) config.Config {
	if len(c.Train.BatchSchedule) > 0 {
		c = c.Largest().Alone()
		a.note("train.batch_schedule: a plan for its largest batches, of %d sequences", c.Train.BatchSize)
	}
	return c
}

// cache makes measurements use earlier ones. It returns the function that keeps them for later.
func (c *planCommand) cache(a *app, o *measure.Options, s *status) (save func() error) {
	o.Cache = a.measuredCosts()
	if c.Fresh {
		o.Cache.Renew()
	}
	if kernels := c.tuneFlag.cache(a, s.timing); kernels != nil {
		o.Tune = kernels
		return func() error { return errors.Join(kernels.Save(), o.Cache.Save()) }
	}
	return o.Cache.Save
}

// machines reads the machines of --members; nil: there are none.
func (c *planCommand) machines() (machines, error) {
	if c.Members == "" {
		return nil, nil
	}
	if c.Network != "" {
		return nil, usererror.Errorf("--network: found with --members, which has the links of its machines")
	}
	m, err := readMachines(c.Members)
	if err != nil {
		return nil, usererror.Errorf("--members: %w", err)
	}
	return m, nil
}

// gpu is the card of --gpu; nil: there is none.
func (c *planCommand) gpu() (*measure.GPU, error) {
	if c.GPU == "" {
		return nil, nil
	}
	if c.Members != "" {
		return nil, usererror.Errorf("--gpu: found with --members, which has the devices of its machines")
	}
	all := measure.GPUs()
	i := slices.IndexFunc(all, func(g measure.GPU) bool { return g.Name == c.GPU })
	if i < 0 {
		return nil, usererror.Errorf("--gpu: found %q, expected one of %s", c.GPU, strings.Join(measure.GPUNames(), ", "))
	}
	return &all[i], nil
}

// loadFor reads the config for machines with a device for each rank. A config that sets no stages gets one for each.
// With --gpu each rank has a null device that stands for a card.
func (c *planCommand) loadFor(m machines) (config.Config, error) {
	base, err := c.load()
	if err != nil || m == nil && c.GPU == "" {
		return base, err
	}
	if m == nil {
		var names []string
		for i := range base.Pipeline.Stages * base.Pipeline.Replicas {
			names = append(names, fmt.Sprintf("null:%d", i))
		}
		v := *c
		v.Set = append(slices.Clone(c.Set), "pipeline.devices=["+strings.Join(names, ", ")+"]")
		return v.load()
	}
	names, stages, replicas := m.devices(), base.Pipeline.Stages, base.Pipeline.Replicas
	if stages == 1 {
		stages = len(names) / replicas
	}
	if stages == 0 || stages*replicas > len(names) {
		return base, usererror.Errorf("--members: found %d devices, expected at least %d: one for each of %d stages of %d replicas",
			len(names), max(1, stages)*replicas, max(1, stages), replicas)
	}
	for i, name := range names {
		names[i] = quoted(name)
	}
	v := *c
	v.Set = append(slices.Clone(c.Set), fmt.Sprint("pipeline.stages=", stages),
		"pipeline.devices=["+strings.Join(names[:stages*replicas], ", ")+"]")
	return v.load()
}

// devicesToUse are the devices that a run needs to follow the recommended plan; none: its members bring them. It takes
// cards that need not be present for the cards that WebGPU lists first.
func (c *planCommand) devicesToUse(p *layout.Comparison, over machines) []string {
	if p.RecommendedIndex < 0 || over != nil {
		return nil
	}
	names := slices.Clone(p.DevicesOf(p.Schedules[p.RecommendedIndex].Plan))
	if c.GPU != "" {
		for i := range names {
			names[i] = fmt.Sprintf("webgpu:%d", i)
		}
	}
	return names
}

// load reads the config. It sets data and run.dir, which a plan does not use.
func (c *planCommand) load() (config.Config, error) {
	path, run := c.Config, "plan"
	if st, err := os.Stat(path); err == nil && st.IsDir() { // its checkpoints may have the module that writes the model
		kept, err := configIn(path)
		if err != nil {
			return config.Config{}, err
		}
		path, run = kept, path
	}
	set := append([]string{"run.dir=" + quoted(run), "data.train=[none]", "data.val=[]"}, c.Set...)
	if c.Stages != nil {
		set = append(set, fmt.Sprintf("pipeline.stages=%d", *c.Stages))
	}
	if len(c.Cut) > 0 {
		set = append(set, "pipeline.cut=["+strings.Join(c.Cut, ",")+"]")
	}
	if c.Memory != "" {
		set = append(set, "pipeline.memory="+quoted(c.Memory))
	}
	if path == "" && len(c.Set) == 0 {
		return config.Config{}, usererror.New(errors.New(noConfig))
	}
	return config.Load(path, set)
}

// open opens a device. The null device gets the limits of a usual GPU, so that large models can be planned.
func (c *planCommand) open(a *app, name string) (device.Device, error) {
	if backend, _, _ := strings.Cut(name, ":"); backend != "null" {
		dev, err := a.openDevice(name)
		if err != nil && c.Modelled {
			err = fmt.Errorf("%w; to plan for a GPU that is not present: --set pipeline.devices=[null:0]", err)
		}
		return dev, err
	}
	dev, err := a.openDevice(name)
	if err != nil {
		return nil, err
	}
	return null.New(null.Options{Name: dev.Info().Name, Limits: usualGPU()}), dev.Close()
}

// usualGPU returns the limits of a discrete GPU through WebGPU.
func usualGPU() *target.Limits {
	l := target.DefaultLimits()
	l.MaxBindingSize, l.MaxBufferSize = 2<<30, 1<<40
	l.MaxWorkgroupMemory, l.MaxInvocations, l.MaxWorkgroupSize = 32<<10, 1024, [3]int{1024, 1024, 64}
	return &l
}

// parseLink reads the latency and the bandwidth of a link, as in 10ms,1Gbit; nil if the text is empty.
func parseLink(text string) (*partition.Link, error) {
	if text == "" {
		return nil, nil
	}
	latency, bandwidth, _ := strings.Cut(text, ",")
	seconds, err := parseLatency(latency, ", as in 10ms,1Gbit")
	if err != nil {
		return nil, err
	}
	rate, err := parseRate(bandwidth, ", as in 10ms,1Gbit")
	if err != nil {
		return nil, err
	}
	return &partition.Link{Latency: seconds, Bandwidth: rate}, nil
}

// parseLatency reads a time in seconds. An error ends with an example.
func parseLatency(text, example string) (float64, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < 0 || d > time.Hour {
		return 0, fmt.Errorf("found latency %q, expected a time from 0s to 1h%s", text, example)
	}
	return d.Seconds(), nil
}

// Bounds of a bandwidth, in bits a second.
const (
	leastRate = 1e3
	mostRate  = 1e15
)

// parseRate reads a bandwidth in bytes a second. An error ends with an example.
func parseRate(text, example string) (float64, error) {
	for _, unit := range []struct {
		name string
		bits float64
	}{{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}} {
		number, is := strings.CutSuffix(strings.TrimSpace(text), unit.name)
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if bits := n * unit.bits; is && err == nil && bits >= leastRate && bits <= mostRate {
			return bits / 8, nil
		}
	}
	return 0, fmt.Errorf("found bandwidth %q, expected bits a second in kbit, Mbit or Gbit, from 1kbit to 1000000Gbit%s", text, example)
}
