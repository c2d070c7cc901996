// Command gpupipe trains transformer language models on GPUs and CPUs, and evaluates and samples them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/internal/hub/client"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailure     = 1   // ours, or the device's; a run that diverged; a full disk
	exitMistake     = 2   // the user's: bad input, no such device
	exitInterrupted = 130 // by Ctrl-C, after saving
)

const description = `Trains transformer language models on GPUs, through WebGPU or Vulkan compute shaders, and on CPUs.

One YAML file describes a run. gpupipe init writes one, gpupipe config lists its keys, and --set section.key=value overrides any of them.`

const examples = `
Examples:

  write a YAML file to start from     gpupipe init my.yaml --data 'books/*.txt'
  list available devices              gpupipe devices
  train                               gpupipe train examples/demo/config.yaml
  continue a run that stopped         gpupipe train runs/demo --resume
  train on several computers          gpupipe host c.yaml
  override keys of the config         gpupipe train c.yaml --set train.steps=9
  measure each kernel's time          gpupipe train c.yaml --profile
  continue a text                     gpupipe generate runs/demo --prompt "In"
  answer requests of OpenAI's API     gpupipe serve runs/demo
  measure the loss on held-out text   gpupipe eval runs/demo
  store predictions to distill from   gpupipe topk runs/demo --out t.safetensors
  write a Hugging Face folder         gpupipe export runs/demo --out demo-hf
  download a model of the Hub         gpupipe fetch hf:org/name
  upload a model to the Hub           gpupipe push runs/demo org/name
  show stage utilization              gpupipe trace runs/demo
  watch runs on a page                gpupipe watch runs
  plan stage boundaries               gpupipe plan c.yaml --stages 4
  print the generated shaders         gpupipe kernels c.yaml
  search for good values of keys      gpupipe sweep sweep.yaml
  find a learning rate                gpupipe lr-range c.yaml
  compare optimizers                  gpupipe study study.yaml
  check the device's arithmetic       gpupipe selftest
  check pipelines against one device  gpupipe verify
  test and measure every device       gpupipe report
  turn text into token shards         gpupipe data --out shards a.txt
  show a pipeline's order of work     gpupipe schedule --name 2bw --draw text

Exit codes: 0 done; 1 failed or diverged; 2 bad input; 130 interrupted, after
saving.
`

// commands are the commands in the order of the help.
type commands struct {
	Version kong.VersionFlag `help:"Print the version and the revision."`
	trainingCommands
	modelCommands
	preparationCommands
	studyCommands
	programCommands
}

// trainingCommands train models.
type trainingCommands struct {
	Init    initCommand    `cmd:"" help:"Write a YAML file to start from."`
	Config  configCommand  `cmd:"" help:"List the keys of a run's YAML file."`
	Train   trainCommand   `cmd:"" help:"Train a model."`
	Host    hostCommand    `cmd:"" help:"Train on several computers, which join."`
	Join    joinCommand    `cmd:"" help:"Compute for a run on another computer."`
	Members membersCommand `cmd:"" help:"Show the computers of a run."`
}

// modelCommands use trained models.
type modelCommands struct {
	Eval     evalCommand     `cmd:"" help:"Measure a model's loss on a text."`
	Generate generateCommand `cmd:"" help:"Continue a text with a model."`
	Serve    serveCommand    `cmd:"" help:"Answer requests of OpenAI's API with a model, and show a page."`
	Export   exportCommand   `cmd:"" help:"Write a model as a Hugging Face folder or a GGUF file."`
	Topk     topKCommand     `cmd:"" help:"Store a model's likeliest next tokens for each token of a text."`
	Fetch    fetchCommand    `cmd:"" help:"Download models and data sets of the Hugging Face Hub."`
	Push     pushCommand     `cmd:"" help:"Upload a model to the Hugging Face Hub, with a model card."`
}

// preparationCommands prepare training: devices, data, and how a pipeline is laid out.
type preparationCommands struct {
	Devices   devicesCommand   `cmd:"" help:"List available devices."`
	Data      dataCommand      `cmd:"" help:"Turn text into token shards."`
	Tokenizer tokenizerCommand `cmd:"" help:"Train and check tokenizers."`
	Selftest  selftestCommand  `cmd:"" help:"Check that a device computes correctly."`
	Verify    verifyCommand    `cmd:"" help:"Check that pipelines compute what one device computes."`
	Schedule  scheduleCommand  `cmd:"" help:"Show the order of a pipeline's work, and its bubble."`
	Plan      planCommand      `cmd:"" help:"Plan stage boundaries, and choose a schedule."`
	Kernels   kernelsCommand   `cmd:"" help:"Print the kernels that a config generates, without a device."`
}

// studyCommands search, measure and watch.
type studyCommands struct {
	Sweep   sweepCommand   `cmd:"" help:"Search for good values of a config's keys with many runs."`
	LRRange lrRangeCommand `cmd:"" name:"lr-range" help:"Find a learning rate with one short run."`
	Study   studyCommand   `cmd:"" help:"Compare optimizers with and without delayed updates."`
	Bench   benchCommand   `cmd:"" help:"Measure kernels and training steps."`
	Report  reportCommand  `cmd:"" help:"Test and measure every device, and write a report to send."`
	Hook    hookCommand    `cmd:"" help:"Create, check and measure WebAssembly hooks."`
	Trace   traceCommand   `cmd:"" help:"Show stage utilization of a run."`
	Watch   watchCommand   `cmd:"" help:"Show runs on a page while they train."`
}

// programCommands are about the program itself, or for other programs.
type programCommands struct {
	Help       helpCommand       `cmd:"" help:"Show the help of the program, or of a command."`
	Release    versionCommand    `cmd:"" name:"version" help:"Print the version and the revision."`
	Completion completionCommand `cmd:"" help:"Print a script that completes commands in a shell."`
	Man        manCommand        `cmd:"" help:"Print the manual page."`
	Complete   completeCommand   `cmd:"" hidden:"" help:"Complete a command line for a shell."`
	Worker     workerCommand     `cmd:"" hidden:"" help:"Compute for another process. gpupipe train starts workers itself."`
}

// app holds what the commands share.
type app struct {
	ctx            context.Context
	build          string // that members of a run must have, too
	stdin          io.Reader
	stdout, stderr io.Writer
	stdoutColumns  func() int // the terminal's present width; nil: stdout is not a terminal
	stderrColumns  func() int
	failed         error        // the first error of writing to stdout
	saves          atomic.Int64 // checkpoints that signals have asked for
	warned         sync.Map     // warnings that were given and are given only once, by name
	cpu            toolchain
	fetching       *client.Client // of the Hub, for downloads; nil: nothing was downloaded yet
	downloads      *status        // of it
}

func main() {
	hideToken()
	os.Exit(program(version.String()))
}

// program runs this process's command line as a build of this program, and returns the exit code.
func program(build string) int {
	a := &app{build: build, stdin: os.Stdin, stdout: &output{to: os.Stdout}, stderr: &output{to: os.Stderr},
		stdoutColumns: columnsOf(os.Stdout), stderrColumns: columnsOf(os.Stderr)}
	ctx, stop := handleSignals(a.stderr, &a.saves)
	a.ctx = ctx
	defer stop()
	return a.run(os.Args[1:])
}

// exited carries an exit code out of kong's parser, and out of a command that runs another.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run parses the arguments, runs the command and returns the exit code.
func (a *app) run(args []string) (code int) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exited)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	var c commands
	parser, err := kong.New(&c, kong.Name("gpupipe"), kong.Description(description), kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(code int) { panic(exited(code)) }), kong.Bind(a), kong.Vars(targetVars()),
		kong.Vars{"version": versionText()}, kong.KindMapper(reflect.String, kong.MapperFunc(text)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Help(help))
	if err != nil {
		panic(err) // the commands above are ill-formed
	}
	adaptHelp(parser.Model.Node, runtime.GOOS)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		a.note("gpupipe: %v%s\nSee %s --help.", err, keyMeant(err), commandOf(err))
		return exitMistake
	}
	if err = a.fetchNames(parsed); err == nil {
		err = parsed.Run(a)
	}
	if err == nil {
		err = a.failed
	}
	return a.conclude(err)
}

// text takes an argument unchanged. kong's own mapper replaces bytes that are not UTF-8, which file names may contain.
func text(ctx *kong.DecodeContext, target reflect.Value) error {
	t, err := ctx.Scan.PopValue("string")
	if err == nil {
		target.SetString(t.String())
	}
	return err
}

// help adds the examples to kong's own text.
func help(o kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(o, ctx); err != nil {
		return err
	}
	if ctx.Selected() == nil {
		_, err := fmt.Fprint(ctx.Stdout, examples)
		return err
	}
	return nil
}

// errInterrupted ends a command that Ctrl-C stopped and that has printed its last message.
var errInterrupted = errors.New("interrupted")

// message is the text of an error. A file's name comes first, without the name of the system call that failed.
func message(err error) string {
	text := err.Error()
	var file *fs.PathError
	if errors.As(err, &file) {
		text = strings.Replace(text, file.Error(), fmt.Sprintf("%s: %v", file.Path, file.Err), 1)
	}
	return text
}

func (a *app) conclude(err error) int {
	var user *usererror.Error
	var code exited
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, context.Canceled):
		a.note("gpupipe: interrupted")
		return exitInterrupted
	case errors.Is(err, train.ErrDiverged), diskFull(err):
		a.note("gpupipe: %s", message(err))
		return exitFailure
	case errors.As(err, &user):
		a.note("gpupipe: %s", message(err))
		return exitMistake
	}
	a.note("gpupipe: failed: %s", message(err))
	return exitFailure
}

// printJSON writes one object on one line.
func (a *app) printJSON(v any) error {
	out, err := json.Marshal(v)
	if err != nil {
		return err
	}
	a.printf("%s\n", out)
	return a.failed
}

// note writes a line beside the result, to standard error. On a terminal, long lines are broken at spaces.
func (a *app) note(format string, args ...any) {
	a.warnf("%s\n", broken(fmt.Sprintf(format, args...), a.stderrColumns))
}

// notes prints several notes.
func (a *app) notes(texts []string) {
	for _, s := range texts {
		a.note("%s", s)
	}
}

// warnf writes to standard error.
func (a *app) warnf(format string, args ...any) { fmt.Fprintf(a.stderr, format, args...) }

// printf writes to standard output. An error there fails the command at its end: training goes on.
func (a *app) printf(format string, args ...any) {
	_, err := fmt.Fprintf(a.stdout, format, args...)
	a.lost(err)
}

// printText writes text that may hold anything: on a terminal, what would change the terminal's state is escaped.
func (a *app) printText(text string) {
	if a.stdoutColumns != nil {
		text = escapeControls(text)
	}
	a.printf("%s", text)
}

// lost keeps the first error of writing to standard output.
func (a *app) lost(err error) {
	if err != nil && a.failed == nil {
		a.failed = usererror.Errorf("standard output: %w", err)
	}
}

// width is the number of columns of the terminal that standard output is; 0 if it is not a terminal.
func (a *app) width() int {
	if a.stdoutColumns == nil {
		return 0
	}
	return max(20, a.stdoutColumns()-1)
}

// table writes rows in aligned columns.
func (a *app) table(rows [][]string) { a.lost(table.Write(a.stdout, rows)) }

// headed writes a table whose first row is its header. On a terminal that is too narrow for it, texts are broken at
// spaces. If that does not suffice, the header becomes the first column, or each row becomes a list of cells behind
// their headers.
func (a *app) headed(rows [][]string) {
	if a.stdoutColumns == nil {
		a.table(rows)
		return
	}
	for _, turned := range [][][]string{rows, table.Turned(rows)} {
		if fitted, ok := table.Fit(turned, a.stdoutColumns()-1); ok {
			a.table(fitted)
			return
		}
	}
	header := 0
	for _, name := range rows[0] {
		header = max(header, table.Width(name)+table.Width(table.Gap))
	}
	for i, row := range rows[1:] {
		if i > 0 {
			a.printf("\n")
		}
		for j, cell := range row {
			if cell != "" {
				a.column(rows[0][j], header, cell)
			}
		}
	}
}

// markdown writes a text in Markdown. On a terminal its tables are aligned as headed does, and long lines are broken at
// spaces.
func (a *app) markdown(text string) {
	if a.stdoutColumns == nil {
		a.printf("%s", text)
		return
	}
	var rows [][]string
	for line := range strings.Lines(text) {
		cells, isRow := strings.CutPrefix(strings.TrimSpace(line), "| ")
		switch {
		case isRow && strings.Trim(cells, "|-: ") == "": // the line below a header
		case isRow:
			row := strings.Split(strings.TrimSuffix(cells, "|"), " | ")
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			rows = append(rows, row)
		default:
			if len(rows) > 0 {
				a.headed(rows)
				rows = nil
			}
			a.prose(line)
		}
	}
	if len(rows) > 0 {
		a.headed(rows)
	}
}

// labeled writes a text after a label, as wide as the others. On a terminal, long texts are broken at spaces.
func (a *app) labeled(label, text string) { a.column(label, labelWidth, text) }

// column writes a text after a label that is padded to a width.
func (a *app) column(label string, width int, text string) {
	lines := []string{text}
	if a.stdoutColumns != nil && width+table.Width(text) >= a.stdoutColumns() {
		lines = table.Wrap(text, max(20, a.stdoutColumns()-width-1))
	}
	for i, line := range lines {
		if i > 0 {
			label = ""
		}
		a.printf("%s%s\n", table.Pad(label, width), line)
	}
}

// prose writes a text. On a terminal, its lines are broken at spaces.
func (a *app) prose(text string) { a.printf("%s", broken(text, a.stdoutColumns)) }

// broken breaks lines at spaces where a terminal is too narrow for them, and escapes what would change the terminal's
// state. Without a terminal, the text stays.
func broken(text string, columns func() int) string {
	if columns == nil {
		return text
	}
	return table.Prose(escapeControls(text), max(20, columns()-1))
}

// facts writes pairs of a name and a value. On a terminal, long values are broken at spaces.
func (a *app) facts(rows [][]string) {
	width := 0
	for _, row := range rows {
		width = max(width, table.Width(row[0])+table.Width(table.Gap))
	}
	for _, row := range rows {
		a.column(row[0], width, row[1])
	}
}

// labelWidth is the width of the labels that are printed before training and in a plan.
const labelWidth = 12
