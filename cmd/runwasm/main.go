// Command runwasm runs a Go program that was built for WebAssembly, for go test -exec:
//
//	GOOS=wasip1 GOARCH=wasm go test -exec "…/runwasm wasi" PACKAGES      under wazero
//	GOOS=wasip1 GOARCH=wasm go test -exec "…/runwasm interpret" PACKAGES under wazero's interpreter, which starts sooner
//	GOOS=js GOARCH=wasm go test -exec "…/runwasm browser" PACKAGES       in a page of a headless Chromium
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// However go test or a user ends it, no browser is left behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	if len(os.Args) < 3 {
		fail(fmt.Errorf("expected: runwasm wasi|interpret|browser PROGRAM [ARGUMENT…]"))
	}
	run, ok := map[string]func(context.Context, []string) (int, error){"wasi": wasi, "interpret": interpret, "browser": browser}[os.Args[1]]
	if !ok {
		fail(fmt.Errorf("found %q, expected wasi, interpret or browser", os.Args[1]))
	}
	code, err := run(ctx, os.Args[2:])
	if err != nil {
		fail(err)
	}
	os.Exit(code)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "runwasm:", err)
	os.Exit(2)
}
