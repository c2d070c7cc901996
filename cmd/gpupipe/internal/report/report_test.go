package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain makes of the test binary the program whose commands are reported.
func TestMain(m *testing.M) {
	if os.Getenv("REPORT_TEST_COMMAND") == "" {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "json":
		home, _ := os.UserHomeDir()
		here, _ := os.Getwd()
		fmt.Printf("{\"value\": 7, \"home\": %q, \"here\": %q}\n", home, here)
	case "lines":
		fmt.Println("{\"step\": 1}\nnot JSON\n{\"step\": 2}")
	case "fail":
		fmt.Fprintf(os.Stderr, "first line\nkernel | x: wrong result\n")
		os.Exit(1)
	case "crash":
		panic("the driver crashed")
	case "hang":
		fmt.Println(`{"partial": true}`)
		time.Sleep(time.Hour)
	}
	os.Exit(0)
}

func written(t *testing.T, r *Report) (markdown string, data Report) {
	t.Helper()
	m, d := r.Files()
	text, err := os.ReadFile(m)
	require.NoError(t, err)
	js, err := os.ReadFile(d)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(js, &data))
	return string(text), data
}

func TestSections(t *testing.T) {
	t.Setenv("REPORT_TEST_COMMAND", "1")
	home := filepath.Join(t.TempDir(), "home-of-somebody")
	t.Setenv("HOME", home)
	dir := t.TempDir()
	r := New(filepath.Join(t.TempDir(), "out"), "v1.2.3", time.Minute)
	var limits []string
	runner := Runner{Program: os.Args[0], Dir: dir, Progress: func(task Task, limit time.Duration) { limits = append(limits, task.Name) }}
	value := func(output []byte, s *Section) error {
		var v struct{ Value int }
		if err := json.Unmarshal(output, &v); err != nil {
			return err
		}
		if s.Note = fmt.Sprint(v.Value); v.Value != 7 {
			return errors.New("expected 7")
		}
		s.Tables = []Table{{Head: []string{"name"}, Rows: [][]string{{"a|b"}}}}
		return nil
	}
	subject := r.Subject("gpu:0", "gpu:0: a card")
	require.NoError(t, r.Run(t.Context(), runner, subject, []Task{
		{Name: "good", Args: []string{"json"}, Weight: 1, Read: value},
		{Name: "lines", Args: []string{"lines"}, Weight: 1, Read: func(_ []byte, s *Section) error {
			s.Tables = []Table{{Head: []string{"failure"}}}
			return nil
		}},
		{Name: "wrong", Args: []string{"lines"}, Weight: 1, Read: value},
		{Name: "failing", Args: []string{"fail"}, Weight: 1},
		{Name: "crashing", Args: []string{"crash"}, Weight: 1},
		{Name: "skipped", Args: []string{"hang"}, Weight: 1000, Skip: "it would not end"},
		{Name: "large", Args: []string{"hang", dir}, Weight: 1000, Disk: 1 << 62},
	}, time.Hour))
	require.NoError(t, r.Run(t.Context(), runner, subject,
		[]Task{{Name: "hanging", Args: []string{"hang", "--within", Limit}, Weight: 1}}, 2*time.Second))
	assert.Equal(t, []string{"good", "lines", "wrong", "failing", "crashing", "hanging"}, limits)

	markdown, data := written(t, r)
	assert.Contains(t, markdown, "**Incomplete:**")
	r.Done = true
	require.NoError(t, r.Write())
	markdown, data = written(t, r)
	assert.NotContains(t, markdown, "Incomplete")
	assert.NotContains(t, markdown, "### lines", "a table without rows needs no heading")
	var status []Status
	for _, s := range data.Subjects[0].Sections {
		status = append(status, s.Status)
	}
	assert.Equal(t, []Status{Passed, Passed, Failed, Failed, Failed, Skipped, Skipped, Unfinished}, status)
	assert.Equal(t, []string{"gpu:0: wrong: failed", "gpu:0: failing: failed", "gpu:0: crashing: failed", "gpu:0: hanging: unfinished"},
		r.Problems())
	sections := data.Subjects[0].Sections
	assert.JSONEq(t, `{"value": 7, "home": "HOME", "here": "DIR"}`, string(sections[0].Output))
	assert.JSONEq(t, `[{"step": 1}, {"step": 2}]`, string(sections[1].Output))
	assert.Equal(t, []string{"first line", "kernel | x: wrong result"}, sections[3].Errors)
	assert.Contains(t, strings.Join(sections[4].Errors, "\n"), "panic: the driver crashed")
	assert.Regexp(t, `^needs 4294967296 GiB in .*, which has [0-9.]+ GiB free`, sections[6].Note)
	assert.JSONEq(t, `{"partial": true}`, string(sections[7].Output), "what a command printed before its time was over is kept")
	assert.Equal(t, "1s", sections[7].Command[2])
	assert.Contains(t, sections[7].Errors[0], "not finished within 2 s")
	for _, want := range []string{"## gpu:0: a card", `| a\|b |`, "| skipped | skipped | 0.0 | 0 | it would not end |",
		"kernel | x: wrong result", "- **gpu:0: hanging: unfinished**"} {
		assert.Contains(t, markdown, want)
	}
	for _, secret := range []string{home, dir} {
		assert.NotContains(t, markdown, secret)
	}
}

func TestTimeIsShared(t *testing.T) {
	tasks := []Task{{Weight: 1}, {Weight: 5, Skip: "skipped"}, {Weight: 3}}
	assert.Equal(t, 15*time.Second, share(time.Minute, tasks))
	assert.Equal(t, time.Minute, share(time.Minute, tasks[2:]))
	assert.Equal(t, time.Second, share(-time.Minute, tasks), "what has no time left still starts")
}

func TestSystemHasNoUserNames(t *testing.T) {
	t.Setenv("HOME", "/home/somebody")
	t.Setenv("VK_DRIVER_FILES", "/home/somebody/icd.json")
	s := inspect()
	assert.Equal(t, "HOME/icd.json", s.Environment["VK_DRIVER_FILES"])
	assert.NotContains(t, s.Environment, "HOME")
}

// A path of Windows is replaced in JSON, too, where its backslashes are doubled.
func TestPathsOfWindows(t *testing.T) {
	s := newScrubber(`C:\Users\me\Temp`)
	for _, text := range []string{`C:\Users\me\Temp`, `C:\\Users\\me\\Temp`, "C:/Users/me/Temp"} {
		assert.Equal(t, "in DIR.", s.clean("in "+text+"."))
	}
}
