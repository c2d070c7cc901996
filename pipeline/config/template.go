package config

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/internal/table"
)

// Target is hardware that Template writes a config for.
type Target struct {
	Name    string // as in gpupipe init --for
	Summary string
	set     []setting
}

// setting is a key and its value as YAML.
type setting struct{ key, value string }

// Targets lists the hardware that Template knows.
func Targets() []Target {
	gpu := []setting{
		{"model.preset", "smollm2-135m"}, {"model.seq_len", "1024"}, {"data.tokenizer", "gpt2"}, {"train.steps", "20000"},
		{"train.batch_size", "128"}, {"train.microbatches", "32"}, {"train.precision", "bf16"}, {"train.eval_every", "500"},
		{"train.save_every", "500"}, {"train.keep", "3"}, {"lr.warmup", "1000"},
	}
	pair := append(gpu[:len(gpu):len(gpu)], setting{"pipeline.schedule", "2bw"}, setting{"pipeline.stages", "2"},
		setting{"pipeline.devices", "[webgpu:0, webgpu:1]"}, setting{"pipeline.error_feedback", "true"})
	return []Target{
		{"cpu", "a first test on a CPU, in minutes", []setting{
			{"model.preset", "tiny"}, {"data.tokenizer", "bytes"}, {"train.steps", "400"}, {"train.batch_size", "16"},
			{"train.eval_every", "100"}, {"train.save_every", "100"}, {"lr.warmup", "40"}}},
		{"gpu", "one GPU", gpu},
		{"2gpus", "two GPUs, a pipeline stage on each", pair},
	}
}

// commentWidth is the width of comments in a template.
const commentWidth = 100

// Template returns a commented config that trains on data in the folder dir.
func (t Target) Template(data []string, dir string) []byte {
	set := map[string]string{"data.train": inYAML(data), "data.val_fraction": "0.01", "run.dir": inYAML(dir),
		"optimizer.name": defaultOptimizer().Name()}
	for _, s := range t.set {
		set[s.key] = s.value
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# A run of gpupipe for %s. gpupipe config lists all keys and their defaults.\n", t.Summary)
	section := ""
	for _, k := range Keys() {
		value, ok := set[k.Name]
		if !ok {
			continue
		}
		parent, name, _ := strings.Cut(k.Name, ".")
		if parent != section {
			section = parent
			fmt.Fprintf(&b, "\n%s:\n", section)
		}
		for _, line := range table.Wrap(k.Explanation(), commentWidth) {
			fmt.Fprintf(&b, "  # %s\n", line)
		}
		fmt.Fprintf(&b, "  %s: %s\n", name, value)
	}
	return []byte(b.String())
}

// Explanation is the help and the values of a key.
func (k Key) Explanation() string {
	if len(k.Values) == 0 {
		return k.Help
	}
	return k.Help + " One of " + strings.Join(k.Values, ", ") + "."
}
