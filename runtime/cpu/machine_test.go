//go:build linux && cgo

package cpu

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func files(of map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, content := range of {
		m[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return m
}

func TestQuota(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"no control groups": {nil, 0},
		"no bound":          {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 0},
		"version 2":         {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5},
		"a parent's": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
			"sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2},
		"version 1": {map[string]string{"proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/x\n0::/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"}, 0.5},
		"nonsense": {map[string]string{"proc/self/cgroup": "0::/\nx\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, 0},
	} {
		assert.Equal(t, c.want, quota(files(c.files)), name)
	}
}

func TestThreads(t *testing.T) {
	for _, c := range []struct {
		m              machine
		threads, cores int
	}{
		{machine{allowed: 8}, 8, 8},
		{machine{allowed: 8, quota: 2}, 2, 2},
		{machine{allowed: 8, quota: 1.5}, 2, 1},
		{machine{allowed: 8, quota: 0.2}, 1, 0},
		{machine{allowed: 2, quota: 64}, 2, 2},
	} {
		assert.Equal(t, c.threads, c.m.threads(), c.m)
		assert.Equal(t, c.cores, c.m.cores(), c.m)
	}
}

func TestReadingTheMachine(t *testing.T) {
	var m machine
	m.read(files(map[string]string{"proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu avx512f\n\nprocessor : 1\nmodel name : other\n"}))
	assert.Equal(t, machine{model: "Xeon", vendor: "Intel", features: "fpu avx512f"}, m)
	m = machine{}
	m.read(files(map[string]string{"proc/cpuinfo": "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0c\n"}))
	assert.Equal(t, "Arm", m.vendor)
	assert.Equal(t, "fp asimd", m.features)
	assert.Contains(t, m.model, " CPU, part 0xd0c")
	m = machine{}
	m.read(files(nil))
	assert.Contains(t, m.model, " CPU")
}
