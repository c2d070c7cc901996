// Command gpupipe trains transformer language models on any GPU, and evaluates and samples them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailure     = 1   // ours, or the device's
	exitMistake     = 2   // the user's: bad input, a full disk, no such device
	exitInterrupted = 130 // by Ctrl-C, after saving
)

const description = `Trains transformer language models on whatever GPUs there are, through WebGPU or Vulkan compute shaders.

A run is described by one YAML file; every key can be set on the command line with --set section.key=value.`

const examples = `
Examples:

  gpupipe devices                                      which GPUs there are
  gpupipe train examples/demo/config.yaml              train
  gpupipe train runs/demo --resume                     go on where a run stopped
  gpupipe train c.yaml --set train.steps=50 --set optimizer.name=adamw
  gpupipe generate runs/demo --prompt "In the beginning" --temperature 0.8
  gpupipe eval runs/demo                               loss on the held-out text
  gpupipe topk runs/demo --out teacher.safetensors     its predictions, to distil a smaller model from
  gpupipe export runs/demo --out demo-hf               a folder for Hugging Face's transformers
  gpupipe trace runs/demo                              how busy its stages were
  gpupipe train c.yaml --profile                       which kernels take the time
  gpupipe plan c.yaml --stages 4                       where to cut it into pipeline stages
  gpupipe study examples/one-step-delay/study.yaml     what one step of delay costs each optimizer
  gpupipe selftest                                     does the GPU compute right
  gpupipe verify                                       does a pipeline compute what one device does
  gpupipe data --tokenizer gpt2 --out shards a.txt     text to token shards
  gpupipe schedule --name 2bw --draw text              in which order a pipeline's stages work

Exit codes: 0 done; 1 failed; 2 bad input; 130 interrupted, after saving.
`

type commands struct {
	Train    trainCommand    `cmd:"" help:"Train a model."`
	Eval     evalCommand     `cmd:"" help:"Measure a model's loss on a text."`
	Generate generateCommand `cmd:"" help:"Continue a text with a model."`
	Export   exportCommand   `cmd:"" help:"Write a model as a Hugging Face folder."`
	Topk     topKCommand     `cmd:"" help:"Store what a model predicts for each token of a text."`
	Devices  devicesCommand  `cmd:"" help:"List the GPUs that can be used."`
	Data     dataCommand     `cmd:"" help:"Turn text into token shards."`
	Selftest selftestCommand `cmd:"" help:"Check that a GPU computes right."`
	Verify   verifyCommand   `cmd:"" help:"Prove that pipelines of devices compute what one computes."`
	Schedule scheduleCommand `cmd:"" help:"Show in which order a pipeline works, and how long it waits."`
	Plan     planCommand     `cmd:"" help:"Say where to cut a model into pipeline stages, and which schedule to take."`
	Kernels  kernelsCommand  `cmd:"" help:"Print the kernels that a config generates, without a device."`
	Study    studyCommand    `cmd:"" help:"Compare optimizers with and without delayed updates."`
	Bench    benchCommand    `cmd:"" help:"Measure kernels and training steps."`
	Hook     hookCommand     `cmd:"" help:"Write, try and measure WebAssembly hooks."`
	Trace    traceCommand    `cmd:"" help:"Tell how busy the stages of a run were."`
	Worker   workerCommand   `cmd:"" help:"Compute for another process: gpupipe train starts workers by itself."`
}

// app is what the commands share.
type app struct {
	ctx            context.Context
	stdout, stderr io.Writer
	stdoutColumns  func() int // the terminal's present width; nil: stdout is not a terminal
	stderrColumns  func() int
	failed         error    // the first error of writing to stdout
	warned         sync.Map // warnings that were given and are given only once, by name
}

func main() {
	ctx, stop := interruptible(os.Stderr)
	a := &app{ctx: ctx, stdout: os.Stdout, stderr: os.Stderr, stdoutColumns: columnsOf(os.Stdout), stderrColumns: columnsOf(os.Stderr)}
	code := a.run(os.Args[1:])
	stop()
	os.Exit(code)
}

// interruptible ends the context at the first Ctrl-C and the process at the second.
func interruptible(stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup wants
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		<-signals
		fmt.Fprintln(stderr, "\nstopping after this step; press Ctrl-C again to quit at once")
		cancel()
		<-signals
		os.Exit(exitInterrupted)
	}()
	return ctx, func() { signal.Stop(signals); cancel() }
}

// exited carries kong's wish to exit out of its parser.
type exited int

// run parses the arguments, carries out the command and returns the exit code.
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
		kong.Exit(func(code int) { panic(exited(code)) }), kong.Bind(a), kong.KindMapper(reflect.String, kong.MapperFunc(text)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Help(help))
	if err != nil {
		panic(err) // the commands above are ill-formed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(a.stderr, "gpupipe: %v\nSee gpupipe --help.\n", err)
		return exitMistake
	}
	if err = parsed.Run(a); err == nil {
		err = a.failed
	}
	return a.conclude(err)
}

// text takes an argument as it is; kong's own mapper alters what is not UTF-8, which names of files need not be.
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

// errInterrupted ends a command that was stopped by Ctrl-C; what there was to say has been said.
var errInterrupted = errors.New("interrupted")

func (a *app) conclude(err error) int {
	var user *usererror.Error
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(a.stderr, "gpupipe: interrupted")
		return exitInterrupted
	case errors.As(err, &user):
		fmt.Fprintf(a.stderr, "gpupipe: %v\n", err)
		return exitMistake
	}
	fmt.Fprintf(a.stderr, "gpupipe: failed: %v\n", err)
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

// note writes a line beside the result, to standard error.
func (a *app) note(format string, args ...any) { a.warnf(format+"\n", args...) }

// warnf writes to standard error.
func (a *app) warnf(format string, args ...any) { fmt.Fprintf(a.stderr, format, args...) }

// printf writes to standard output. An error there fails the command at its end: training goes on.
func (a *app) printf(format string, args ...any) {
	_, err := fmt.Fprintf(a.stdout, format, args...)
	a.lost(err)
}

// lost keeps the first error of writing to standard output.
func (a *app) lost(err error) {
	if err != nil && a.failed == nil {
		a.failed = usererror.New(fmt.Errorf("standard output: %w", err))
	}
}

// table writes rows in aligned columns.
func (a *app) table(rows [][]string) { a.lost(table.Write(a.stdout, rows)) }
