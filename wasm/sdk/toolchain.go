package sdk

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
)

// Toolchain is what building a hook in some language needs.
type Toolchain struct {
	Programs []string // commands that have to be there
	Debian   string   // packages of Debian and Ubuntu
	MacOS    string   // packages of Homebrew; "" if the SDK was not tried there
	Other    string   // where else it comes from
}

var toolchains = map[string]Toolchain{
	"c": {Programs: []string{"make", "clang", "wasm-ld"}, Debian: "clang lld make", MacOS: "llvm lld"},
	"rust": {Programs: []string{"make", "cargo", "rustc"}, Debian: "cargo rustc libstd-rust-dev-wasm32 lld make",
		Other: "rustup target add wasm32-unknown-unknown"},
	"assemblyscript": {Programs: []string{"make", "node", "npm"}, Debian: "nodejs npm make", MacOS: "node"},
	"tinygo": {Programs: []string{"make", "go", "wasm-opt", "wasm-ld-19"},
		Debian: "g++ llvm-19-dev libclang-19-dev lld-19 binaryen wasi-libc make", Other: "Go 1.26 or later from go.dev/dl"},
	"go": {Programs: []string{"make", "go"}, Debian: "make", MacOS: "go", Other: "Go 1.24 or later from go.dev/dl"},
}

// ToolchainOf returns the toolchain of a language that Languages lists.
func ToolchainOf(language string) Toolchain { return toolchains[language] }

// Missing lists the programs that are not on the path.
func (t Toolchain) Missing() (programs []string) {
	for _, p := range t.Programs {
		if _, err := exec.LookPath(p); err != nil {
			programs = append(programs, p)
		}
	}
	return programs
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
