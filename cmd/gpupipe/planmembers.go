package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// machines are the machines of plan --members.
type machines interface {
	// devices are the names of the devices that stand for the machines' devices, one for each rank.
	devices() []string
	// open opens such a device.
	open(a *app, name string) (device.Device, error)
	// place gives a problem the devices of the machines, and their links.
	place(p *partition.Problem) error
	// describe describes the devices of a comparison as the machines' devices.
	describe(p *layout.Comparison)
}

// readMachines reads plan --members: the folder of a run of gpupipe host, or a file.
func readMachines(path string) (machines, error) {
	st, err := os.Stat(path)
	if err == nil && st.IsDir() {
		path = filepath.Join(path, machinesFile)
		if _, missing := os.Stat(path); missing != nil {
			return nil, fmt.Errorf("%s: no such file, expected the folder of a run of gpupipe host that has measured its members", path)
		}
	}
	if err == nil && strings.HasSuffix(path, ".json") {
		m, err := readMeasured(path)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	m, err := readImagined(path)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// measuredMachines are the machines of a run, as its coordinator has measured them.
type measuredMachines struct {
	path string
	partition.Measured
}

func readMeasured(path string) (*measuredMachines, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &measuredMachines{path: path}
	if err = json.Unmarshal(text, &m.Measured); err == nil {
		err = m.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func (m *measuredMachines) devices() (names []string) {
	for range m.Devices {
		names = append(names, "null:0")
	}
	return names
}

// open opens a device. Only its limits matter.
func (m *measuredMachines) open(a *app, name string) (device.Device, error) {
	return null.New(null.Options{Name: name, Limits: usualGPU()}), nil
}

func (m *measuredMachines) place(p *partition.Problem) error {
	if err := m.Apply(p); err != nil {
		return usererror.Errorf("%s: %w", m.path, err)
	}
	return nil
}

func (m *measuredMachines) describe(p *layout.Comparison) {
	p.Modelled = m.Modelled
	for i := range p.Devices {
		p.Ranks[i] = m.Devices[i].Name
	}
}

// imaginedMachines are hypothetical machines, from a YAML file.
type imaginedMachines struct {
	Machines []imaginedMachine `yaml:"machines"`
	Link     string            `yaml:"link"`  // between machines, as in 10ms,1Gbit
	Links    []imaginedLink    `yaml:"links"` // that differ, in both directions
	Homes    imaginedHomes     `yaml:",inline"`
	network  *partition.Network
}

// imaginedMachine is a machine with a device.
type imaginedMachine struct {
	Name   string  `yaml:"name"`
	Device string  `yaml:"device"` // of this computer, that is measured, or null:0; "": the default device
	Speed  float64 `yaml:"speed"`  // of the machine's device over that one; 0: 1
	Memory string  `yaml:"memory"` // of the device, as in 24GiB; "": what the device reports
	// Of homes alone:
	GPU          string  `yaml:"gpu"`          // the name of a card
	TokensPerSec float64 `yaml:"tokens_per_s"` // measured, of the machine alone
	Site         string  `yaml:"site"`
	connection   `yaml:",inline"`
}

type imaginedLink struct {
	Between []string `yaml:"between"` // two names
	Link    string   `yaml:"link"`
}

func readImagined(path string) (*imaginedMachines, error) {
	d, err := strictyaml.Load(path)
	if err != nil {
		return nil, err
	}
	m := &imaginedMachines{}
	if err := d.Decode(m); err != nil {
		return nil, err
	}
	if m.areHomes() {
		return m, nil
	}
	if err := m.connect(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// connect checks the machines and makes their network.
func (m *imaginedMachines) connect() error {
	names, err := m.names()
	if err != nil {
		return err
	}
	link, err := parseLink(m.Link)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if link == nil {
		return fmt.Errorf("link: found nothing, expected the latency and the bandwidth between machines, as in 10ms,1Gbit")
	}
	m.network = partition.Uniform(len(m.Machines), *link)
	for i, l := range m.Links {
		at := func(end int) int { return slices.Index(names, l.Between[end]) }
		if len(l.Between) != 2 || at(0) < 0 || at(1) < 0 || at(0) == at(1) {
			return fmt.Errorf("links[%d].between: found %s, expected two of %s", i, strings.Join(l.Between, ", "), strings.Join(names, ", "))
		}
		link, err := parseLink(l.Link)
		if err != nil || link == nil {
			return fmt.Errorf("links[%d].link: found %q, expected a latency and a bandwidth, as in 10ms,1Gbit", i, l.Link)
		}
		m.network.Links[at(0)][at(1)], m.network.Links[at(1)][at(0)] = *link, *link
	}
	return nil
}

// names checks the names and the speeds of the machines.
func (m *imaginedMachines) names() (names []string, err error) {
	if len(m.Machines) < 2 {
		return nil, fmt.Errorf("machines: found %d, expected at least 2", len(m.Machines))
	}
	seen := map[string]bool{}
	for i, x := range m.Machines {
		if x.Name == "" || seen[x.Name] {
			return nil, fmt.Errorf("machines[%d].name: found %q, expected another name for each machine", i, x.Name)
		}
		if !(x.Speed == 0 || x.Speed >= 1e-6 && x.Speed <= 1e6) {
			return nil, fmt.Errorf("machines[%d].speed: found %v, expected a factor from 1e-6 to 1e6", i, x.Speed)
		}
		names, seen[x.Name] = append(names, x.Name), true
	}
	return names, nil
}

func (m *imaginedMachines) devices() (names []string) {
	for _, x := range m.Machines {
		names = append(names, x.Device)
	}
	return names
}

func (m *imaginedMachines) open(a *app, name string) (device.Device, error) {
	return (&planCommand{}).open(a, name)
}

func (m *imaginedMachines) place(p *partition.Problem) error {
	n := len(p.Devices)
	if n > len(m.Machines) {
		return usererror.Errorf("--members: found %d machines, expected %d, one for each rank", len(m.Machines), n)
	}
	p.Network = m.network.First(n)
	for i := range p.Devices {
		d, x := &p.Devices[i], m.Machines[i]
		d.Name = x.Name
		if x.Speed > 0 {
			d.Times = partition.AtSpeed(d.Times, x.Speed)
		}
		if x.Memory != "" {
			bytes, err := config.ParseBytes(x.Memory)
			if err != nil {
				return usererror.Errorf("--members: machines[%d].memory: %w", i, err)
			}
			d.Memory = bytes
		}
	}
	return nil
}

func (m *imaginedMachines) describe(p *layout.Comparison) {
	for i := range p.Devices {
		p.Ranks[i] = m.Machines[i].Name
	}
}

// printAlone prints the speed of each machine alone.
func printAlone(a *app, p *layout.Comparison) {
	if len(p.Alone) == 0 {
		return
	}
	together := p.Schedules[p.RecommendedIndex].Plan.TokensPerSec
	rows := [][]string{{"MACHINE ALONE", "TOKENS/S", "OF THE TOKENS/S TOGETHER"}}
	for _, m := range p.Alone {
		if m.Problem != "" {
			rows = append(rows, []string{strings.Join(m.Devices, ", "), m.Problem, ""})
			continue
		}
		rows = append(rows, []string{strings.Join(m.Devices, ", "), grouped(int64(m.TokensPerSec)),
			fmt.Sprintf("%.0f %%", 100*m.TokensPerSec/together)})
	}
	a.printf("\n")
	a.headed(rows)
	if best := layout.Fastest(p.Alone, together); best != nil {
		a.prose(fmt.Sprintf("\none machine alone would be faster: %s, %s tokens/s against %s\n", strings.Join(best.Devices, ", "),
			grouped(int64(best.TokensPerSec)), grouped(int64(together))))
	}
}
