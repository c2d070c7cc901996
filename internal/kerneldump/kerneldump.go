// Package kerneldump writes the kernels that devices load, as text for people: to a folder, a file each, or to a
// stream.
package kerneldump

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Folder returns a Dump that writes each kernel once to a file in dir, which it makes. The file is named by the
// kernel's label, the hash of its source and its format, so several processes may share the folder.
func Folder(dir string) (device.Dump, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("dumping kernels: %w", err)
	}
	return func(k device.Kernel) error {
		err := write(filepath.Join(dir, name(k)), content(k))
		if err != nil {
			return fmt.Errorf("dumping kernels: %w", err)
		}
		return nil
	}, nil
}

// Stream returns a Dump that prints each distinct text once, with a headline. Kernels in binary formats are omitted.
func Stream(w io.Writer) device.Dump {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(k device.Kernel) error {
		mu.Lock()
		defer mu.Unlock()
		if k.Format == device.FormatSPIRV || seen[string(k.Code)] {
			return nil
		}
		seen[string(k.Code)] = true
		_, err := w.Write(append(content(k), '\n'))
		return err
	}
}

// write makes a file unless it exists.
func write(path string, content []byte) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.Replace(path, ".kernel-", content)
}

// content returns the code, after a headline if it is text.
func content(k device.Kernel) []byte {
	comment := map[device.Format]string{device.FormatWGSL: "//", device.FormatC: "//", device.FormatAssembly: ";"}[k.Format]
	if comment == "" {
		return k.Code
	}
	s := k.Shader
	head := fmt.Sprintf("%s %s\n%s program %q, workgroup of %d×%d×%d, %d bindings\n", comment, oneLine(s.Label), comment, k.Program,
		s.Workgroup[0], s.Workgroup[1], s.Workgroup[2], len(s.Bindings))
	if k.Format == device.FormatAssembly { // its first line says that it is assembly
		return append(append([]byte{}, k.Code...), "\n"+head...)
	}
	return append([]byte(head), k.Code...)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

var unusual = regexp.MustCompile(`[^A-Za-z0-9.]+`)

const maxName = 80 // bytes of the label in a file's name

func name(k device.Kernel) string {
	hash := sha256.Sum256([]byte(k.Shader.Source))
	label := strings.Trim(unusual.ReplaceAllString(k.Shader.Label, "-"), "-.")
	return fmt.Sprintf("%s-%s.%s", label[:min(len(label), maxName)], hex.EncodeToString(hash[:4]), k.Format)
}
