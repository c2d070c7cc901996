package gpupipe

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	proseColumns = 120
	answerLines  = 8
)

var (
	heading    = regexp.MustCompile(`^(##|###) (.*)$`)
	notInLinks = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// contentsEntry is the line of the table of contents for a section, with the anchor that Markdown renderers give it.
func contentsEntry(title string) string {
	anchor := strings.ReplaceAll(notInLinks.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
	return "- [" + title + "](#" + anchor + ")"
}

func TestRationale(t *testing.T) {
	text, err := os.ReadFile("docs/RATIONALE.md")
	require.NoError(t, err)
	var contents, want []string
	question, lines := "", 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch m := heading.FindStringSubmatch(line); {
		case m != nil:
			if m[1] == "##" {
				want = append(want, contentsEntry(m[2]))
			}
			question, lines = m[2], 0
		case question == "" && strings.HasPrefix(strings.TrimSpace(line), "- ["):
			contents = append(contents, line)
		case line != "" && !strings.HasPrefix(line, "|"):
			lines++
			assert.LessOrEqual(t, utf8.RuneCountInString(line), proseColumns, line)
			assert.LessOrEqual(t, lines, answerLines, "the answer to %q is longer than %d lines", question, answerLines)
		}
	}
	assert.Equal(t, want, contents, "the table of contents of docs/RATIONALE.md")
}

// Every hook stands in the table of docs/HOOKS.md and has a paragraph there.
func TestHooksAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/HOOKS.md")
	require.NoError(t, err)
	for _, name := range hook.Names() {
		assert.Contains(t, string(text), "\n| `"+name+"` |", "the table of docs/HOOKS.md")
		assert.Contains(t, string(text), "\n**`"+name+"`**", "the hooks of docs/HOOKS.md")
	}
}

var scheduleKey = regexp.MustCompile(`(?m)^  schedule: .*$`)

// The README's line for pipeline.schedule names every schedule that a run can train with, and no other.
func TestReadmeNamesTheSchedules(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	line := scheduleKey.FindString(string(text))
	require.NotEmpty(t, line, "README.md has no line for pipeline.schedule")
	names := regexp.MustCompile(`[\w-]+`).FindAllString(line, -1)
	for _, f := range schedule.Families() {
		assert.Equal(t, f.Untrainable == "", slices.Contains(names, f.Name), "README.md, %q: %s", strings.TrimSpace(line), f.Name)
	}
}

// The README of the examples shows every hook.
func TestExamplesNameTheHooks(t *testing.T) {
	text, err := os.ReadFile("examples/hooks/README.md")
	require.NoError(t, err)
	for _, name := range hook.Names() {
		assert.Contains(t, string(text), "`"+name+"`", "examples/hooks/README.md")
	}
}

// docs/MODELS.md has every key of model:, every preset and every class of Hugging Face's transformers.
func TestModelsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/MODELS.md")
	require.NoError(t, err)
	named := func(name string) {
		assert.True(t, strings.Contains(string(text), "`"+name+"`"), "docs/MODELS.md does not have `%s`", name)
	}
	var check func(prefix string, section reflect.Type)
	check = func(prefix string, section reflect.Type) {
		for _, f := range reflect.VisibleFields(section) {
			key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if f.Type.Kind() == reflect.Struct {
				check(prefix+key+".", f.Type)
				continue
			}
			named(prefix + key)
		}
	}
	check("", reflect.TypeFor[model.Config]())
	for _, name := range model.Presets() {
		named(name)
	}
	for _, example := range regexp.MustCompile(`(?m)^model:( \{.*\}|\n( .*\n)+)`).FindAllString(string(text), -1) {
		_, err := config.Parse("docs/MODELS.md", []byte(example), []string{"data.train=[a.txt]", "run.dir=run"})
		assert.NoError(t, err, example)
	}
	classes, err := os.ReadFile("graph/model/families.go")
	require.NoError(t, err)
	found := regexp.MustCompile(`name: "(\w+)"`).FindAllStringSubmatch(string(classes), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		named(m[1])
	}
}
