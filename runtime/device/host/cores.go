package host

import (
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Processors is the part of the machine's processors that the process may use.
type Processors struct {
	Allowed int     // logical cores, by affinity
	Quota   float64 // cores, by the control groups, on average; 0: no bound
}

// ThisProcess returns what this process may use.
func ThisProcess() Processors {
	return Processors{Allowed: runtime.NumCPU(), Quota: quota(os.DirFS("/"))}
}

// Cores returns the number of cores that the process may use, rounded up.
func (p Processors) Cores() int {
	if p.Quota == 0 {
		return p.Allowed
	}
	return max(1, min(p.Allowed, int(p.Quota+0.999)))
}

// Whole returns the number of cores that the process may use all the time.
func (p Processors) Whole() int {
	if p.Quota == 0 {
		return p.Allowed
	}
	return min(p.Allowed, int(p.Quota))
}

// quota returns the cores that the control groups of the process allow on average; 0: no bound.
func quota(root fs.FS) (cores float64) {
	bound := func(n float64) {
		if n > 0 && (cores == 0 || n < cores) {
			cores = n
		}
	}
	eachGroup(root, func(controllers []string, dir string) {
		switch {
		case controllers == nil:
			bound(ratio(words(root, "sys/fs/cgroup"+dir+"/cpu.max")))
		case slices.Contains(controllers, "cpu"):
			base := "sys/fs/cgroup/cpu" + dir
			bound(ratio(append(words(root, base+"/cpu.cfs_quota_us"), words(root, base+"/cpu.cfs_period_us")...)))
		}
	})
	return cores
}

// eachGroup visits the control groups of the process and those around them, up to the root of each hierarchy, which a
// container may see as its own. controllers is nil for version 2.
func eachGroup(root fs.FS, visit func(controllers []string, dir string)) {
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var controllers []string
		if parts[0] != "0" {
			controllers = strings.Split(parts[1], ",")
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			visit(controllers, dir)
			if dir == "/" {
				break
			}
		}
	}
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
