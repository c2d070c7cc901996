//go:build linux && cgo

package cpu

import (
	"bufio"
	"cmp"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// machine is what is known of the CPU and of the part of it that the process may use.
type machine struct {
	model, vendor, features string
	allowed                 int     // logical cores, by affinity
	quota                   float64 // cores, by the control group; 0: no bound
}

func thisMachine() machine {
	root := os.DirFS("/")
	m := machine{allowed: runtime.NumCPU(), quota: quota(root)}
	m.read(root)
	return m
}

// threads returns the number of cores that the process may use, rounded up.
func (m machine) threads() int {
	if m.quota == 0 {
		return m.allowed
	}
	return max(1, min(m.allowed, int(m.quota+0.999)))
}

// cores returns the number of cores that the process may use all the time.
func (m machine) cores() int {
	if m.quota == 0 {
		return m.allowed
	}
	return min(m.allowed, int(m.quota))
}

// identity returns what compiled code depends on.
func (m machine) identity() string { return m.model + " \n " + m.features }

func (m machine) info(c *cc.Compiler) device.Info {
	return device.Info{Name: "cpu:0", Adapter: m.model, Vendor: m.vendor, Driver: c.Version(), API: "native", Kind: device.CPU}
}

// read fills in what /proc/cpuinfo says about the first core.
func (m *machine) read(root fs.FS) {
	m.model = runtime.GOARCH + " CPU"
	f, err := root.Open("proc/cpuinfo")
	if err != nil {
		return
	}
	defer f.Close()
	of := map[string]string{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if key = strings.TrimSpace(key); of[key] == "" {
			of[key] = strings.TrimSpace(value)
		}
	}
	m.vendor = map[string]string{"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "0x41": "Arm", "0x61": "Apple", "0xc0": "Ampere",
		"0x51": "Qualcomm"}[cmp.Or(of["vendor_id"], of["CPU implementer"])]
	if part := of["CPU part"]; part != "" {
		m.model += ", part " + part
	}
	m.model = cmp.Or(of["model name"], m.model)
	m.features = cmp.Or(of["flags"], of["Features"])
}

// quota returns the cores that the control groups of the process allow on average; 0: no bound.
func quota(root fs.FS) (cores float64) {
	bound := func(n float64) {
		if n > 0 && (cores == 0 || n < cores) {
			cores = n
		}
	}
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			switch {
			case parts[0] == "0": // version 2
				bound(ratio(words(root, "sys/fs/cgroup"+dir+"/cpu.max")))
			case strings.Contains(","+parts[1]+",", ",cpu,"):
				base := "sys/fs/cgroup/cpu" + dir
				bound(ratio(append(words(root, base+"/cpu.cfs_quota_us"), words(root, base+"/cpu.cfs_period_us")...)))
			}
			if dir == "/" {
				break
			}
		}
	}
	return cores
}

func words(root fs.FS, name string) []string {
	b, _ := fs.ReadFile(root, path.Clean(name))
	return strings.Fields(string(b))
}

// ratio returns the quotient of two numbers; 0 if there is none, such as for a quota of "max" or −1.
func ratio(parts []string) float64 {
	if len(parts) != 2 {
		return 0
	}
	quota, err := strconv.ParseFloat(parts[0], 64)
	period, err2 := strconv.ParseFloat(parts[1], 64)
	if err != nil || err2 != nil || period <= 0 {
		return 0
	}
	return quota / period
}
