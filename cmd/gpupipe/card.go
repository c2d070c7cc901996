package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"go.yaml.in/yaml/v3"
)

const (
	cardFile = "README.md"
	plotFile = "loss.png"
)

// runOf is the run folder of a checkpoint's folder; "" if the folder is in none.
func runOf(dir string) string {
	if at := filepath.Dir(dir); filepath.Base(at) == checkpoint.Folder {
		return filepath.Dir(at)
	}
	return ""
}

// cardHead is the part of a model card that the Hub reads.
type cardHead struct {
	Library  string   `yaml:"library_name"`
	Task     string   `yaml:"pipeline_tag"`
	Tags     []string `yaml:"tags"`
	License  string   `yaml:"license,omitempty"`
	Base     string   `yaml:"base_model,omitempty"`
	DataSets []string `yaml:"datasets,omitempty"`
}

// cardMark is in each card.
const cardMark = "Trained with [gpupipe](https://github.com/gpupipe/gpupipe)"

// writeCard writes the model card of an export into its folder, and the plot of its run's losses. It returns their
// names.
func writeCard(n hub.Name, license string, e inference.Exported, dir string) (names []string, err error) {
	head := cardHead{Library: "transformers", Task: "text-generation", Tags: []string{"gpupipe"}, License: license}
	hook := slices.Contains(e.Files, config.ModuleFile)
	if hook {
		head.Library = "gpupipe"
	}
	rows := [][2]string{{"parameters", fmt.Sprintf("%s, stored as %s", grouped(e.Parameters), e.DType)}}
	var settings string
	names = []string{cardFile}
	if run := runOf(e.Model); run != "" {
		text, err := os.ReadFile(filepath.Join(e.Model, config.SavedFile))
		if err != nil {
			return nil, err
		}
		c, err := config.ParseSaved(config.SavedFile, text)
		if err != nil {
			return nil, err
		}
		head.Base, head.DataSets, settings = baseOf(c), dataSetsOf(c), settingsOf(c)
		records, err := recordsUpTo(run, *e.Step)
		if err != nil {
			return nil, err
		}
		rows = append(rows, [2]string{"step", fmt.Sprint(*e.Step)})
		rows = append(rows, lossRows(records)...)
		switch err := metrics.PlotLoss(filepath.Join(dir, plotFile), n.ID, "", records, math.NaN()); {
		case err == nil:
			names = append(names, plotFile)
		case !errors.Is(err, metrics.ErrNoPoint):
			return nil, err
		}
	}
	text := cardText(n, head, rows, settings, slices.Contains(names, plotFile))
	return names, os.WriteFile(filepath.Join(dir, cardFile), []byte(text), 0o666)
}

func cardText(n hub.Name, head cardHead, rows [][2]string, settings string, plot bool) string {
	front, err := yaml.Marshal(head)
	if err != nil {
		panic(err) // texts always marshal
	}
	var b strings.Builder
	fmt.Fprintf(&b, "---\n%s---\n\n# %s\n\n%s.\n\n| | |\n| --- | --- |\n", front,
		filepath.Base(n.ID), cardMark)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |\n", r[0], r[1])
	}
	if plot {
		fmt.Fprintf(&b, "\n![losses by step](%s)\n", plotFile)
	}
	fmt.Fprintf(&b, "\n## Use\n\n```sh\ngpupipe generate %s --prompt \"In the beginning\"\n```\n", n.Text())
	if head.Library == "transformers" {
		fmt.Fprintf(&b, "\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\nmodel = AutoModelForCausalLM.from_pretrained(%q)\ntokenizer = AutoTokenizer.from_pretrained(%q)\n```\n",
			n.ID, n.ID)
	}
	if settings != "" {
		fmt.Fprintf(&b, "\n## Settings\n\nThose that differ from gpupipe's defaults:\n\n```yaml\n%s```\n", settings)
	}
	return b.String()
}

// recordsUpTo are the measurements of a run up to a step.
func recordsUpTo(run string, step int) ([]metrics.Record, error) {
	records, err := metrics.Read(filepath.Join(run, "metrics.jsonl"))
	if errors.Is(err, os.ErrNotExist) { // a checkpoint that was copied
		return nil, nil
	}
	return slices.DeleteFunc(records, func(r metrics.Record) bool { return r.Step > step }), err
}

// lossRows are the last losses and the tokens of a run.
func lossRows(records []metrics.Record) (rows [][2]string) {
	for _, m := range []struct{ key, name, format string }{{"tokens", "training tokens", ""}, {"loss", "training loss of the last step", "%.4f"},
		{"val_loss", "validation loss", "%.4f"}} {
		for _, r := range slices.Backward(records) {
			if x, ok := r.Values[m.key]; ok {
				text := grouped(int64(x))
				if m.format != "" {
					text = fmt.Sprintf(m.format, x) + " nats per token"
				}
				rows = append(rows, [2]string{m.name, text})
				break
			}
		}
	}
	return rows
}

// baseOf is the model of the Hub that a run started from; "" for none.
func baseOf(c config.Config) string {
	if n, ok, err := hub.Parse(c.Init.From); ok && err == nil && hub.IsAddress(c.Init.From) {
		return n.ID
	}
	return ""
}

// dataSetsOf are the data sets of the Hub that a run was trained on.
func dataSetsOf(c config.Config) (ids []string) {
	files := slices.Clone(c.Data.Train)
	for _, s := range c.Data.Mix {
		files = append(files, s.Train...)
	}
	for _, f := range files {
		if n, ok, err := hub.Parse(f); ok && err == nil && n.Kind == hub.DataSets && !slices.Contains(ids, n.ID) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// settingsOf are the settings that differ from the defaults, but for what this machine decides: paths, devices and
// hooks. Names of the Hub stay.
func settingsOf(c config.Config) string {
	var b strings.Builder
	for _, line := range c.Changed() {
		key, value, _ := strings.Cut(line, ": ")
		local := slices.ContainsFunc([]string{"run.", "data.train", "data.val", "data.mix", "data.aligned", "data.tokenizer", "init.from",
			"train.eval_tasks", "pipeline.devices", "pipeline.schedule", "hooks"}, func(p string) bool { return strings.HasPrefix(key, p) })
		if key == "data.val_fraction" || !local || strings.HasPrefix(strings.TrimLeft(value, `["'`), "hf:") && !strings.Contains(value, ", ") ||
			key == "pipeline.schedule" && !c.Pipeline.HasScheduleFile() {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	return b.String()
}
