package report

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// System describes the machine. It holds no name of the machine or its user.
type System struct {
	Platform     string            `json:"platform"`
	Go           string            `json:"go"`
	Distribution string            `json:"distribution,omitempty"`
	Kernel       string            `json:"kernel,omitempty"`
	CPU          string            `json:"cpu,omitempty"`
	Cores        int               `json:"cores"`
	Memory       string            `json:"memory,omitempty"`
	NVIDIA       string            `json:"nvidia_driver,omitempty"`
	Drivers      []string          `json:"vulkan_manifests,omitempty"` // the names of the manifests of Vulkan drivers
	Environment  map[string]string `json:"environment,omitempty"`      // variables that choose or tune drivers
}

// inspect describes this machine, as far as Linux's files say.
func inspect() System {
	s := System{Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Cores: runtime.NumCPU(),
		Distribution: strings.Trim(value("/etc/os-release", "PRETTY_NAME="), `"`), Kernel: firstLine("/proc/sys/kernel/osrelease"),
		CPU:    strings.TrimLeft(value("/proc/cpuinfo", "model name"), "\t: "),
		Memory: strings.TrimSpace(value("/proc/meminfo", "MemTotal:")), NVIDIA: firstLine("/proc/driver/nvidia/version")}
	for _, dir := range []string{"/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"} {
		files, _ := filepath.Glob(dir + "/*.json")
		for _, f := range files {
			s.Drivers = append(s.Drivers, filepath.Base(f))
		}
	}
	scrub := newScrubber("")
	for _, entry := range os.Environ() {
		name, v, _ := strings.Cut(entry, "=")
		for _, prefix := range []string{"VK_", "MESA_", "LP_", "GALLIVM_", "RADV_", "NVK_", "ANV_", "WGPU_"} {
			if strings.HasPrefix(name, prefix) {
				if s.Environment == nil {
					s.Environment = map[string]string{}
				}
				s.Environment[name] = scrub.clean(v)
			}
		}
	}
	return s
}

// value is the rest of the first line in a file that has the prefix.
func value(path, prefix string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return rest
		}
	}
	return ""
}

func firstLine(path string) string { return strings.TrimSpace(value(path, "")) }

// scrubber replaces the names of the machine and of its user.
type scrubber struct{ *strings.Replacer }

// newScrubber also replaces dir, the folder of the commands.
func newScrubber(dir string) scrubber {
	var pairs []string
	replace := func(old, with string) {
		if len(old) <= 2 { // it stands everywhere
			return
		}
		pairs = append(pairs, old, with)
		if strings.Contains(old, `\`) { // in JSON, and as users may write it
			pairs = append(pairs, strings.ReplaceAll(old, `\`, `\\`), with, strings.ReplaceAll(old, `\`, "/"), with)
		}
	}
	replace(dir, "DIR")
	if program, err := os.Executable(); err == nil {
		replace(filepath.Dir(program), "PROGRAM")
	}
	if here, err := os.Getwd(); err == nil {
		replace(here, "HERE")
	}
	if home, err := os.UserHomeDir(); err == nil {
		replace(home, "HOME")
	}
	if me, err := user.Current(); err == nil {
		replace(me.HomeDir, "HOME")
		name := me.Username[strings.LastIndexByte(me.Username, '\\')+1:] // on Windows it follows a machine or domain
		replace("/"+name+"/", "/USER/")
		replace(`\`+name+`\`, `\USER\`)
	}
	if name, err := os.Hostname(); err == nil && len(name) > 3 {
		replace(name, "MACHINE")
	}
	return scrubber{strings.NewReplacer(pairs...)}
}

func (s scrubber) clean(text string) string { return s.Replace(text) }

func (s scrubber) cleanAll(texts []string) []string {
	var cleaned []string
	for _, t := range texts {
		cleaned = append(cleaned, s.clean(t))
	}
	return cleaned
}

// rows are the facts for the Markdown file.
func (s System) rows() [][]string {
	rows := [][]string{{"platform", s.Platform}, {"distribution", s.Distribution}, {"kernel", s.Kernel},
		{"CPU", fmt.Sprintf("%s, %d cores", s.CPU, s.Cores)}, {"memory", s.Memory}, {"NVIDIA driver", s.NVIDIA},
		{"Vulkan drivers", strings.Join(s.Drivers, ", ")}, {"Go", s.Go}}
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		rows = append(rows, []string{name, s.Environment[name]})
	}
	return rows
}
