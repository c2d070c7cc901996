package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// wasi compiles and runs a program under wazero.
func wasi(ctx context.Context, args []string) (int, error) {
	return underWazero(ctx, args, wazero.NewRuntimeConfig())
}

// interpret runs a program under wazero's interpreter: a short program takes less time than its compilation.
func interpret(ctx context.Context, args []string) (int, error) {
	return underWazero(ctx, args, wazero.NewRuntimeConfigInterpreter())
}

// underWazero runs a program, which sees the machine's files, but cannot change them, and a folder of its own for
// temporary ones.
func underWazero(ctx context.Context, args []string, config wazero.RuntimeConfig) (int, error) {
	bin, err := os.ReadFile(args[0])
	if err != nil {
		return 0, err
	}
	temporary, remove, err := atomicfile.Temporary("gpupipe-wasi")
	if err != nil {
		return 0, err
	}
	defer func() { _ = remove() }()
	here, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	defer r.Close(ctx)
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	program, err := r.CompileModule(ctx, bin)
	if err != nil {
		return 0, err
	}
	_, err = r.InstantiateModule(ctx, program, wazero.NewModuleConfig().WithArgs(append([]string{filepath.Base(args[0])}, args[1:]...)...).
		WithStdin(os.Stdin).WithStdout(os.Stdout).WithStderr(os.Stderr).WithRandSource(rand.Reader).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep().WithEnv("PWD", here).WithEnv("TMPDIR", temporary).
		WithFSConfig(wazero.NewFSConfig().WithReadOnlyDirMount("/", "/").WithDirMount(temporary, temporary)))
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		return int(exit.ExitCode()), nil
	}
	return 0, err
}
