package host

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":          {nil, 0},
		"machine":       {map[string]string{"proc/meminfo": "MemFree: 5 kB\nMemTotal:       2048 kB\n"}, 2 << 20},
		"limit at root": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "sys/fs/cgroup/memory.max": "1000000\n"}, 1000000},
		"no limit": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.high": "max\n"}, 2 << 20},
		"limit of machine": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "99000000\n"}, 2 << 20},
		"nested": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "0::/a/b/c\n",
			"sys/fs/cgroup/a/memory.max":   "500000\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/c/memory.max": "900000\n"}, 500000},
		"high": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/memory.high": "400000\n", "sys/fs/cgroup/a/b/memory.max": "900000\n"}, 400000},
		"version 1": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n",
			"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/y\n0::/\n",
			"sys/fs/cgroup/memory/docker/y/memory.limit_in_bytes": "300000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n"}, 300000},
		"version 1 in a container": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n", "proc/self/cgroup": "4:memory:/docker/y\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "300000\n"}, 300000},
		"version 1, several controllers": {map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n",
			"proc/self/cgroup": "4:hugetlb,memory:/y\n",
			"sys/fs/cgroup/memory/y/memory.limit_in_bytes": "-1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "700000\n"}, 700000},
	} {
		root := fstest.MapFS{}
		for path, text := range c.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		assert.Equal(t, c.want, memory(root), name)
	}
}
