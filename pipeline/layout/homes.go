package layout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/pipeline/layout/replicate"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Homes are machines that slow links connect, and the sites that they are at.
type Homes struct {
	Machines    []Machine
	Sites       []HomeSite
	Coordinator int  // the site of the coordinator
	Apart       bool // machines of different sites do not reach each other, but for the coordinator
}

// Machine is a machine with a device.
type Machine struct {
	Name         string
	Site         int
	Device       string       // the name of a device to measure; unused with GPU
	GPU          *measure.GPU // the card that the machine has; nil: it is like Device
	Idle         bool         // it has no device
	Speed        float64      // of its device over the one that is measured
	TokensPerSec float64      // of the machine alone, as it was measured; 0: predicted from its device
	Memory       int64        // bytes; 0: what the device has
}

// HomeSite is a place whose machines share a connection.
type HomeSite struct {
	Name string
	schedule.Site
	Inside partition.Link // between its machines
}

// ReplicaPlan is how a task's model can be trained by replicas on machines that slow links connect.
type ReplicaPlan struct {
	Parameters int64  `json:"parameters"`
	Active     int64  `json:"active_parameters"`
	Precision  string `json:"precision,omitempty"`
	Tokens     int    `json:"tokens"`       // of a replica's share of a batch
	Sequences  int    `json:"sequences"`    // of a microbatch
	Each       int    `json:"microbatches"` // of a replica
	Machines   int    `json:"machines"`
	Modelled   bool   `json:"modelled"` // times are estimates
	Schedule   string `json:"schedule"` // of the stages of each replica
	Wire       string `json:"wire"`     // of exchanges
	replicate.Plan
	Formats []FormatUse `json:"formats,omitempty"` // the same replicas with each format of exchanges
	Host    int64       `json:"host_bytes"`        // of the host's memory that a replica takes besides, on all of its machines
	Pooled  bool        `json:"pooled"`            // no site's machines hold the model: pipelines span sites
	Card    string      `json:"card,omitempty"`    // the slowest card of measure.GPUs that would be as fast alone, if cards are planned for
	Cards   bool        `json:"-"`                 // whether cards are planned for
}

// FormatUse is how often replicas have to exchange in a format.
type FormatUse struct {
	Format string `json:"format"`
	replicate.Exchange
	TokensPerSec float64 `json:"tokens_per_s"`
	Fits         bool    `json:"fits"` // a period that is short enough fits the links
}

// OpenMachine opens the device that stands for a machine's.
type OpenMachine func(m Machine) (device.Device, error)

// mostStages bounds the stages that a replica is planned with.
const mostStages = 8

// PlanReplicas plans replicas on machines. The share of a batch that the config's replicas have is each replica's,
// however many there are. A config with local_steps keeps these, the lateness and the format; without, they are chosen.
func (t Task) PlanReplicas(ctx context.Context, open OpenMachine, h Homes, o measure.Options) (*ReplicaPlan, error) {
	c := t.Config
	share := c.OfReplica()
	out := &ReplicaPlan{Parameters: t.Model.Count(), Active: t.Model.ActiveCount(), Tokens: int(share.BatchTokens()),
		Sequences: share.Rows(), Each: share.Train.Microbatches, Machines: len(h.Machines), Wire: c.Pipeline.Outer.Wire}
	choose := !c.Pipeline.Independent()
	if choose && out.Wire == outer.FormatNames()[0] {
		out.Wire = chosenFormat
	}
	if o.Cache == nil {
		o.Cache = measure.NewCache()
	}
	t.Config = share
	s := &speeds{task: t, homes: h, open: open, options: o, context: ctx, problems: map[string]partition.Problem{},
		alone: map[string]partition.Plan{}, pipelines: map[string]replicate.Pipeline{}}
	p, err := s.problem()
	if err != nil {
		return nil, err
	}
	p.Tokens = out.Tokens
	if !choose {
		p.Period, p.Late = c.Pipeline.LocalSteps, c.Pipeline.Outer.Late
	}
	blocks := replicas.Blocks(t.Model)
	sizes := func(format string) (bytes []float64) {
		f := c.OuterOptimizer()
		f.Format = format
		for _, n := range blocks {
			bytes = append(bytes, float64(f.Bytes(n)))
		}
		return bytes
	}
	p.Weights, p.Messages = sizes("f32"), sizes(out.Wire)
	if out.Plan, err = replicate.Choose(p); errors.Is(err, replicate.ErrTooLarge) {
		out.Pooled = true
		out.Plan, err = replicate.Choose(s.pooled(p))
	}
	if err != nil {
		return nil, usererror.New(s.tooLarge(err))
	}
	for _, f := range outer.FormatNames() {
		p.Messages = sizes(f)
		x, fits, err := p.Exchanges(out.Plan)
		if err != nil {
			return nil, err
		}
		use := FormatUse{Format: f, Exchange: x, Fits: fits}
		if fits {
			use.TokensPerSec = float64(len(out.Replicas)*p.Tokens) / x.StepSeconds
		}
		out.Formats = append(out.Formats, use)
	}
	for _, n := range blocks {
		out.Host += int64(n) * outer.BlockSize * 4 * hostMatrices
	}
	out.Modelled, out.Precision, out.Schedule = s.modelled, s.precision, s.config(out.Replicas[0].Stages).Pipeline.Schedule
	s.findCard(out)
	return out, nil
}

// chosenFormat is the format of exchanges unless another is asked for: it costs next to no loss (docs/REPLICAS.md).
const chosenFormat = "int4"

// hostMatrices is how many matrices as large as the model, in f32, a replica has in the host's memory: the base, its
// residue and what it has sent.
const hostMatrices = 3

// speeds predicts the speeds of machines and of pipelines on them.
type speeds struct {
	task      Task // of one replica
	homes     Homes
	open      OpenMachine
	options   measure.Options
	context   context.Context
	problems  map[string]partition.Problem // with one device, by its kind
	alone     map[string]partition.Plan    // on a device of a kind, by kind and memory
	pipelines map[string]replicate.Pipeline
	modelled  bool
	precision string
}

// problem is the problem of the machines, without the exchanges.
func (s *speeds) problem() (p replicate.Problem, err error) {
	p = replicate.Problem{Owner: s.homes.Coordinator, Direct: !s.homes.Apart, Pipeline: s.pipeline,
		MostStages: min(mostStages, s.task.Model.Units(), s.task.Config.Train.Microbatches)}
	for _, x := range s.homes.Sites {
		p.Sites = append(p.Sites, replicate.Site{Name: x.Name, Site: x.Site, Port: x.Inside.Bandwidth})
	}
	for i, m := range s.homes.Machines {
		x := replicate.Machine{Name: m.Name, Site: m.Site}
		if !m.Idle {
			unlimited, err := s.single(m, false)
			if err != nil {
				return p, err
			}
			x.TokensPerSec = unlimited.TokensPerSec * s.factor(m, unlimited)
			_, err = s.single(m, true)
			x.Fits = err == nil
		}
		if !(x.TokensPerSec >= 0) || math.IsInf(x.TokensPerSec, 1) {
			return p, usererror.Errorf("machines[%d]: its device takes no time", i)
		}
		p.Machines = append(p.Machines, x)
	}
	return p, nil
}

// config is the config of a replica with so many stages.
func (s *speeds) config(stages int) config.Config {
	c := s.task.Config
	p := &c.Pipeline
	p.Stages, p.Replicas, p.Chunks, p.Cut, p.Devices = stages, 1, 1, nil, nil
	p.Depth, p.StaleMicrobatches = config.DepthAuto, config.StaleAuto
	if stages == 1 {
		p.Delay = 0
	}
	p.Schedule = schedule.ForDelay(p.Delay)
	return c
}

// kind names a kind of devices.
func (m Machine) kind() string {
	if m.GPU != nil {
		return "gpu " + m.GPU.Name
	}
	return m.Device
}

// of is the problem of one device of a machine's kind.
func (s *speeds) of(m Machine) (partition.Problem, error) {
	if p, ok := s.problems[m.kind()]; ok {
		return p, nil
	}
	dev, err := s.open(m)
	if err != nil {
		return partition.Problem{}, usererror.Errorf("machine %s: %w", m.Name, err)
	}
	o := s.options
	o.GPU = m.GPU
	t := s.task
	t.Config = s.config(1)
	p, modelled, err := t.Problem(s.context, []device.Device{dev}, o)
	s.modelled = s.modelled || modelled && m.TokensPerSec == 0
	s.precision = DescribePrecision(t.Config.Train.DType(), []device.Device{dev})
	if err = errors.Join(err, dev.Close()); err == nil {
		s.problems[m.kind()] = p
	}
	return p, err
}

// single plans a machine's kind of device alone, at its own speed.
func (s *speeds) single(m Machine, limited bool) (partition.Plan, error) {
	p, err := s.of(m)
	if err != nil {
		return partition.Plan{}, err
	}
	p.Devices = slices.Clone(p.Devices)
	if m.Memory > 0 {
		p.Devices[0].Memory = m.Memory
	}
	if !limited {
		p.Devices[0].Memory = 0
	}
	key := fmt.Sprint(m.kind(), " ", p.Devices[0].Memory)
	if plan, ok := s.alone[key]; ok {
		return plan, nil
	}
	plan, err := choosePlan(s.config(1), p)
	if err == nil {
		s.alone[key] = plan
	}
	return plan, err
}

// factor is the speed of a machine's device relative to its kind's, which has the plan alone.
func (s *speeds) factor(m Machine, alone partition.Plan) float64 {
	switch {
	case m.TokensPerSec > 0:
		return m.TokensPerSec / alone.TokensPerSec
	case m.Speed > 0:
		return m.Speed
	}
	return 1
}

// pipeline predicts a pipeline on machines.
func (s *speeds) pipeline(machines []int) (replicate.Pipeline, error) {
	c, key := s.config(len(machines)), ""
	var p partition.Problem
	var devices []partition.Device
	for _, i := range machines {
		m := s.homes.Machines[i]
		unlimited, err := s.single(m, false)
		if err != nil {
			return replicate.Pipeline{}, err
		}
		if p, err = s.of(m); err != nil {
			return replicate.Pipeline{}, err
		}
		d := p.Devices[0]
		d.Name, d.Times = m.Name, partition.AtSpeed(d.Times, s.factor(m, unlimited))
		if m.Memory > 0 {
			d.Memory = m.Memory
		}
		devices = append(devices, d)
		key += fmt.Sprintf("%s %g %d, ", m.kind(), s.factor(m, unlimited), d.Memory)
	}
	inside := s.homes.Sites[s.homes.Machines[machines[0]].Site].Inside
	key += fmt.Sprint(inside)
	if known, ok := s.pipelines[key]; ok {
		return known, nil
	}
	p.Devices, p.KeepOrder, p.Cut = devices, len(devices) > 3, nil
	if len(devices) > 1 {
		p.Network = partition.Uniform(len(devices), inside)
	}
	plan, err := choosePlan(c, p)
	if err != nil {
		return replicate.Pipeline{}, err
	}
	out := replicate.Pipeline{StepSeconds: plan.StepSeconds, FillSeconds: plan.FillSeconds, TokensPerSec: plan.TokensPerSec,
		HostRate: p.Devices[0].Link.Bandwidth, Stages: len(devices)}
	s.pipelines[key] = out
	return out, nil
}

// pooled is the problem with all machines at one site, whose links are the slowest of all.
func (s *speeds) pooled(p replicate.Problem) replicate.Problem {
	all := HomeSite{Name: "all"}
	for _, x := range s.homes.Sites {
		all.Inside.Latency = max(all.Inside.Latency, x.Latency)
		for _, rate := range []float64{x.Up, x.Down} {
			all.Inside.Bandwidth = replicate.LeastKnown(all.Inside.Bandwidth, rate)
		}
	}
	s.homes.Sites, s.homes.Machines = []HomeSite{all}, slices.Clone(s.homes.Machines)
	p.Sites, p.Machines, p.Owner = []replicate.Site{{Name: all.Name}}, slices.Clone(p.Machines), 0
	for i := range p.Machines {
		s.homes.Machines[i].Site, p.Machines[i].Site = 0, 0
	}
	p.MostStages = min(len(p.Machines), s.task.Model.Units(), s.task.Config.Train.Microbatches)
	return p
}

// tooLarge says how much memory the model lacks, if no machines hold it.
func (s *speeds) tooLarge(err error) error {
	if !errors.Is(err, replicate.ErrTooLarge) {
		return err
	}
	for _, m := range s.homes.Machines {
		if m.Idle {
			continue
		}
		if _, single := s.single(m, true); single != nil {
			return fmt.Errorf("the model fits no machine, nor several together; machine %s: %w", m.Name, single)
		}
	}
	return err
}

// findCard finds the slowest card that would be as fast alone as all together, where cards are planned for.
func (s *speeds) findCard(out *ReplicaPlan) {
	if out.Cards = slices.ContainsFunc(s.homes.Machines, func(m Machine) bool { return m.GPU != nil }); !out.Cards {
		return
	}
	least := math.Inf(1)
	for _, g := range measure.GPUs() {
		plan, err := s.single(Machine{Name: g.Name, GPU: &g}, true)
		if err == nil && plan.TokensPerSec >= out.TokensPerSec && plan.TokensPerSec < least {
			out.Card, least = g.Name, plan.TokensPerSec
		}
	}
}
