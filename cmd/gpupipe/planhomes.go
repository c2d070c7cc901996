package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// imaginedHomes are the keys of a file of machines that slow links connect.
type imaginedHomes struct {
	connection  `yaml:",inline"` // of machines and sites without one of their own
	Coordinator string           `yaml:"coordinator"` // a machine, or a site; "": where the uplink is fastest
	Apart       bool             `yaml:"apart"`       // machines of different sites do not reach each other, but for the coordinator
	Sites       []imaginedSite   `yaml:"sites"`
}

// connection is what connects a machine or a site with the others.
type connection struct {
	Uplink   string `yaml:"uplink"`   // as in 20Mbit
	Downlink string `yaml:"downlink"` // as in 100Mbit
	Latency  string `yaml:"latency"`  // half a round trip to the others, as in 20ms
}

// imaginedSite is a place whose machines share a connection.
type imaginedSite struct {
	Name       string           `yaml:"name"`
	Link       string           `yaml:"link"` // between its machines, as in 0.2ms,10Gbit
	connection `yaml:",inline"` // that they share
}

// areHomes reports whether the file describes what connects each machine with the others, instead of their links.
func (m *imaginedMachines) areHomes() bool {
	return m.Homes.connection != connection{} || len(m.Homes.Sites) > 0 || m.Homes.Apart || m.Homes.Coordinator != "" ||
		slices.ContainsFunc(m.Machines, func(x imaginedMachine) bool { return x.connection != connection{} || x.Site != "" })
}

// homes checks the machines.
func (m *imaginedMachines) homes() (h layout.Homes, err error) {
	if _, err := m.names(); err != nil {
		return h, err
	}
	if m.Link != "" || len(m.Links) > 0 {
		return h, fmt.Errorf("link: found with uplink, expected either the links between machines, or what connects each with the others")
	}
	sites := map[string]int{}
	for i, s := range m.Homes.Sites {
		at := fmt.Sprintf("sites[%d]", i)
		if _, known := sites[s.Name]; known || s.Name == "" {
			return h, fmt.Errorf("%s.name: found %q, expected another name for each site", at, s.Name)
		}
		if slices.ContainsFunc(m.Machines, func(x imaginedMachine) bool { return x.Name == s.Name }) {
			return h, fmt.Errorf("%s.name: found %q, which is the name of a machine, too; expected another name", at, s.Name)
		}
		link, err := parseLink(s.Link)
		if err != nil || link == nil {
			return h, fmt.Errorf("%s.link: found %q, expected a latency and a bandwidth, as in 0.2ms,10Gbit", at, s.Link)
		}
		site := layout.HomeSite{Name: s.Name, Inside: *link}
		if site.Site, err = s.connection.or(m.Homes.connection).parse(at); err != nil {
			return h, err
		}
		sites[s.Name], h.Sites = len(h.Sites), append(h.Sites, site)
	}
	for i, x := range m.Machines {
		machine, err := x.machine(fmt.Sprintf("machines[%d]", i))
		if err != nil {
			return h, err
		}
		if x.Site == "" {
			site := layout.HomeSite{Name: x.Name}
			if site.Site, err = x.connection.or(m.Homes.connection).parse(fmt.Sprintf("machines[%d]", i)); err != nil {
				return h, err
			}
			machine.Site, h.Sites = len(h.Sites), append(h.Sites, site)
		} else if site, known := sites[x.Site]; known && x.connection == (connection{}) {
			machine.Site = site
		} else if known {
			return h, fmt.Errorf("machines[%d]: found a connection of its own at site %s, expected only that of the site", i, x.Site)
		} else {
			return h, fmt.Errorf("machines[%d].site: found %q, expected the name of one of sites", i, x.Site)
		}
		h.Machines = append(h.Machines, machine)
	}
	if !slices.ContainsFunc(h.Machines, func(x layout.Machine) bool { return !x.Idle }) {
		return h, fmt.Errorf("machines: found device none on all of them, expected one that computes")
	}
	h.Apart = m.Homes.Apart
	h.Coordinator, err = m.coordinator(h)
	return h, err
}

// coordinator is the site of the coordinator.
func (m *imaginedMachines) coordinator(h layout.Homes) (int, error) {
	name := m.Homes.Coordinator
	for i, s := range h.Sites {
		if name != "" && s.Name == name {
			return i, nil
		}
	}
	for _, x := range h.Machines {
		if name != "" && x.Name == name {
			return x.Site, nil
		}
	}
	if name != "" {
		return 0, fmt.Errorf("coordinator: found %q, expected the name of a machine or of a site", name)
	}
	best := 0
	for i, s := range h.Sites {
		if s.Up > h.Sites[best].Up {
			best = i
		}
	}
	return best, nil
}

// or is the connection, with what it lacks from another one.
func (c connection) or(other connection) connection {
	return connection{cmp.Or(c.Uplink, other.Uplink), cmp.Or(c.Downlink, other.Downlink), cmp.Or(c.Latency, other.Latency)}
}

// parse reads the connection of a machine or site.
func (c connection) parse(at string) (s schedule.Site, err error) {
	if s.Up, err = parseRate(c.Uplink, ", as in 20Mbit, there or as uplink of all machines"); err != nil {
		return s, fmt.Errorf("%s.uplink: %w", at, err)
	}
	if s.Down, err = parseRate(c.Downlink, ", as in 100Mbit, there or as downlink of all machines"); err != nil {
		return s, fmt.Errorf("%s.downlink: %w", at, err)
	}
	if s.Latency, err = parseLatency(c.Latency, ", as in 20ms, there or as latency of all machines"); err != nil {
		return s, fmt.Errorf("%s.latency: %w", at, err)
	}
	return s, nil
}

// noDevice is the device of a machine that only coordinates.
const noDevice = "none"

// machine checks the device of a machine.
func (x imaginedMachine) machine(at string) (m layout.Machine, err error) {
	m = layout.Machine{Name: x.Name, Device: x.Device, Idle: x.Device == noDevice, Speed: x.Speed, TokensPerSec: x.TokensPerSec}
	if !(x.TokensPerSec == 0 || x.TokensPerSec >= 1e-3 && x.TokensPerSec <= 1e12) {
		return m, fmt.Errorf("%s.tokens_per_s: found %v, expected a number from 0.001 to 1e12", at, x.TokensPerSec)
	}
	if m.Idle && (x.Speed != 0 || x.TokensPerSec != 0 || x.Memory != "") {
		return m, fmt.Errorf("%s: found device none with speed, tokens_per_s or memory, expected none of them: it computes nothing", at)
	}
	if x.Speed > 0 && x.TokensPerSec > 0 {
		return m, fmt.Errorf("%s: found speed and tokens_per_s, expected one of them", at)
	}
	if x.GPU != "" {
		if x.Device != "" {
			return m, fmt.Errorf("%s: found gpu and device, expected one of them", at)
		}
		all := measure.GPUs()
		i := slices.IndexFunc(all, func(g measure.GPU) bool { return g.Name == x.GPU })
		if i < 0 {
			return m, fmt.Errorf("%s.gpu: found %q, expected one of %s", at, x.GPU, strings.Join(measure.GPUNames(), ", "))
		}
		m.GPU = &all[i]
	} else if x.Device == "" && x.TokensPerSec > 0 {
		m.Device = "null:0" // only the shares of its units in its time matter
	}
	if x.Memory != "" {
		if m.Memory, err = config.ParseBytes(x.Memory); err != nil {
			return m, fmt.Errorf("%s.memory: %w", at, err)
		}
	}
	return m, nil
}

// planReplicas plans replicas on the machines of homes.
func (c *planCommand) planReplicas(a *app, m *imaginedMachines) error {
	h, err := m.homes()
	if err != nil {
		return usererror.Errorf("--members: %s: %w", c.Members, err)
	}
	if c.Stages != nil || len(c.Cut) > 0 || c.Memory != "" {
		return usererror.Errorf("--stages, --cut and --memory: found with the machines of homes, for whose replicas they are chosen")
	}
	config, err := c.load()
	if err != nil {
		return err
	}
	config = ofLargestBatches(a, config)
	s := &status{app: a, silent: c.JSON}
	o := measure.Options{Modelled: c.Modelled, Progress: func(device, what string) { s.say("%s: timing %s", device, what) }}
	save := func() error { return nil }
	if !c.Modelled {
		save = c.cache(a, &o, s)
	}
	p, err := train.PlanReplicas(a.ctx, config, func(m layout.Machine) (device.Device, error) {
		if g := m.GPU; g != nil {
			return null.New(null.Options{Name: g.Name, Limits: g.Limits(), MemoryBudget: g.Memory}), nil
		}
		return c.open(a, m.Device)
	}, h, o)
	s.clear()
	if err != nil {
		return err
	}
	if err := save(); err != nil {
		a.note("gpupipe: %v", err)
	}
	if c.JSON {
		return a.printJSON(p)
	}
	printReplicas(a, p, h)
	return nil
}
