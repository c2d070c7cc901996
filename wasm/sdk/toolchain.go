package sdk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Toolchain is what building a hook in some language needs.
type Toolchain struct {
	Programs []string // commands that have to be there
	Debian   string   // packages of Debian and Ubuntu
	MacOS    string   // packages of Homebrew; "" if the SDK was not tried there
	Other    string   // where else it comes from

	targets []target
}

// target is a part of a toolchain for WebAssembly that a program may lack.
type target struct {
	name    string
	program string // without it, the target is not looked for
	found   func() bool
}

const rustTarget = "wasm32-unknown-unknown"

// clangTarget reports whether clang compiles to WebAssembly. Xcode's clang does not.
func clangTarget() bool {
	out, err := exec.Command("clang", "--print-targets").Output()
	return err == nil && strings.Contains(string(out), "wasm32")
}

// rustLibrary reports whether rustc has its library for WebAssembly.
func rustLibrary() bool {
	out, err := exec.Command("rustc", "--print", "target-libdir", "--target", rustTarget).Output()
	libraries, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "libcore-*.rlib"))
	return err == nil && len(libraries) > 0
}

// file is a file or a folder that TinyGo needs.
func file(path string) target {
	return target{path, "wasm-ld-19", func() bool { _, err := os.Stat(path); return err == nil }}
}

// ToolchainOf returns the toolchain of a language that Languages lists.
func ToolchainOf(language string) Toolchain {
	l, _ := find(language)
	return l.toolchain
}

// Missing lists the programs that are not on the path, and the targets that the others lack.
func (t Toolchain) Missing() (names []string) {
	for _, p := range t.Programs {
		if _, err := exec.LookPath(p); err != nil {
			names = append(names, p)
		}
	}
	for _, x := range t.targets {
		if _, err := exec.LookPath(x.program); err == nil && !x.found() {
			names = append(names, x.name)
		}
	}
	return names
}

// Get says how to install the toolchain on this system.
func (t Toolchain) Get() string { return t.get(runtime.GOOS) }

func (t Toolchain) get(system string) string {
	var ways []string
	if system != "darwin" && t.Debian != "" {
		ways = append(ways, "on Debian and Ubuntu: apt-get install "+t.Debian)
	}
	if system != "linux" && t.MacOS != "" {
		ways = append(ways, "on macOS: brew install "+t.MacOS)
	}
	if t.Other != "" {
		ways = append(ways, t.Other)
	}
	if len(ways) == 0 {
		return fmt.Sprintf("install %s", strings.Join(t.Programs, ", "))
	}
	return strings.Join(ways, "; ")
}
