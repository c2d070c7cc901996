//go:build linux && cgo

package cpu

import (
	"bufio"
	"cmp"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/gpupipe/gpupipe/runtime/cpu/cc"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/host"
)

// machine describes the CPU and the part of it that the process may use.
type machine struct {
	model, vendor, features string
	processors              host.Processors
}

func thisMachine() machine {
	m := machine{processors: host.ThisProcess()}
	m.read(os.DirFS("/"))
	return m
}

// identity returns what compiled code depends on.
func (m machine) identity() string { return m.model + " \n " + m.features }

func (m machine) info(c *cc.Compiler, threads int) device.Info {
	return device.Info{Name: "cpu:0", Threads: threads, Adapter: m.model, Vendor: m.vendor, Driver: c.Version(), API: "native",
		Kind: device.CPU}
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
