package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/testing/chromium"
)

//go:embed page.html
var page []byte

// browser runs a program in a page. There are no files and no environment, but /repository serves the module that the
// program is of.
func browser(ctx context.Context, args []string) (int, error) {
	goroot, err := ask("GOROOT")
	if err != nil {
		return 0, err
	}
	mod, err := ask("GOMOD")
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { w.Write(page) })
	mux.HandleFunc("/arguments", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(append([]string{filepath.Base(args[0])}, args[1:]...))
	})
	mux.HandleFunc("/wasm_exec.js", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(goroot, "lib", "wasm", "wasm_exec.js"))
	})
	mux.HandleFunc("/program.wasm", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/wasm")
		http.ServeFile(w, r, args[0])
	})
	mux.Handle("/repository/", http.StripPrefix("/repository/", http.FileServer(http.Dir(filepath.Dir(mod)))))
	code, err := chromium.Page{Handler: mux, Output: os.Stdout}.Run(ctx)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(code))
	if err != nil {
		return 0, fmt.Errorf("the page posted %.1000q, expected the program's exit code", code)
	}
	return n, nil
}

// ask asks the go command for a variable of its environment.
func ask(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
