package host

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
		"version 1": {map[string]string{"proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/x\n0::/\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":  "50000\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n",
			"sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"}, 0.5},
		"nonsense": {map[string]string{"proc/self/cgroup": "0::/\nx\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, 0},
	} {
		assert.Equal(t, c.want, quota(files(c.files)), name)
	}
}

func TestCores(t *testing.T) {
	for _, c := range []struct {
		p            Processors
		cores, whole int
	}{
		{Processors{Allowed: 8}, 8, 8},
		{Processors{Allowed: 8, Quota: 2}, 2, 2},
		{Processors{Allowed: 8, Quota: 1.5}, 2, 1},
		{Processors{Allowed: 8, Quota: 0.2}, 1, 0},
		{Processors{Allowed: 2, Quota: 64}, 2, 2},
	} {
		assert.Equal(t, c.cores, c.p.Cores(), c.p)
		assert.Equal(t, c.whole, c.p.Whole(), c.p)
	}
}
