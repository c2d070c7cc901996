// Package chromium opens a page in a headless Chromium and waits for the page's result. It needs no driver: the page is
// served from here, and posts its result back.
package chromium

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
)

// Variable is the environment variable that names the browser. With the value None, what needs a browser is omitted.
const (
	Variable = "CHROMIUM"
	None     = "none"
)

// ErrNone is the error if there is no browser.
var ErrNone = errors.New("no Chromium found: install chromium (on Debian: apt-get install chromium) or Google Chrome, name one in " +
	Variable +
	", or omit what needs one with " + Variable + "=" + None)

// Rest leaves a test that needs a browser to make test-all, and skips it there if the user omits what needs one.
func Rest(t testing.TB) {
	t.Helper()
	tier.Rest(t)
	if os.Getenv(Variable) == None {
		t.Skip("omitted: " + Variable + "=" + None)
	}
}

// Find returns the path of a Chromium.
func Find() (string, error) {
	names := []string{"chromium", "google-chrome", "google-chrome-stable", "chromium-browser", "chrome",
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "/Applications/Chromium.app/Contents/MacOS/Chromium"}
	if name := os.Getenv(Variable); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	if name := os.Getenv(Variable); name != "" {
		return "", fmt.Errorf("%s names %s, which cannot be run", Variable, name)
	}
	return "", ErrNone
}

// flags make a browser without window, sandbox (containers rarely allow it; the page is ours), profile or use of the
// network, with WebGPU, in software where there is no GPU. Optimizing a page's program would take longer than it saves.
func flags(profile string) []string {
	return []string{"--headless=new", "--no-sandbox", "--js-flags=--liftoff-only", "--enable-unsafe-webgpu", "--disable-dev-shm-usage",
		"--user-data-dir=" + profile, "--enable-logging=stderr", "--no-first-run", "--no-default-browser-check", "--disable-extensions",
		"--disable-sync", "--disable-breakpad",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability",
		"--no-pings",
		"--disable-features=Translate,OptimizationHints,MediaRouter", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"}
}

// Page is a page and how it is served.
type Page struct {
	Handler http.Handler // serves it; a post to /result ends the page
	Path    string       // of the page, with its query
	Output  io.Writer    // receives what the page posts to /output; nil drops it
}

// maxConsole is how many bytes of a browser's console are kept.
const maxConsole = 64 << 10

// Run shows a page until it posts its result, and returns the result. Errors end with the browser's console.
func (p Page) Run(ctx context.Context) ([]byte, error) {
	result := make(chan []byte, 1)
	address, stop, err := p.serve(result)
	if err != nil {
		return nil, err
	}
	defer stop()
	b, err := start(address + p.Path)
	if err != nil {
		return nil, err
	}
	defer b.close()
	select {
	case r := <-result:
		return r, nil
	case <-ctx.Done():
		b.close()
		return nil, fmt.Errorf("the page has posted no result: %w; the browser's console:\n%s", context.Cause(ctx), b.console)
	case <-b.ended:
		return nil, fmt.Errorf("%s ended before the page had posted a result (%v); its console:\n%s", b.cmd.Path, b.err, b.console)
	}
}

// browser is a running browser with a profile of its own.
type browser struct {
	cmd     *exec.Cmd
	profile string
	console *tail
	ended   chan struct{}
	err     error // of the process, once it has ended
	remove  func() error
}

// start opens an address in a browser.
func start(address string, more ...string) (*browser, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	profile, remove, err := atomicfile.Temporary("gpupipe-chromium")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, append(append(flags(profile), more...), address)...)
	b := &browser{cmd: cmd, profile: profile, console: &tail{}, ended: make(chan struct{}), remove: remove}
	cmd.Stdout, cmd.Stderr = b.console, b.console
	cmd.Env = append(os.Environ(), "HOME="+profile, "TMPDIR="+profile,
		"XDG_CONFIG_HOME="+filepath.Join(profile, "config"), "XDG_CACHE_HOME="+filepath.Join(profile, "cache"))
	cmd.WaitDelay = time.Second // children that outlive it hold its output
	group(cmd)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, remove())
	}
	go func() {
		b.err = cmd.Wait()
		close(b.ended)
	}()
	return b, nil
}

// close ends the browser and its children, and removes its profile.
func (b *browser) close() {
	kill(b.cmd)
	<-b.ended
	_ = b.remove() // files that the browser still writes are removed later
}

// serve serves the page on this machine only, with what it may post.
func (p Page) serve(result chan<- []byte) (address string, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", p.Handler)
	mux.HandleFunc("POST /output", func(_ http.ResponseWriter, r *http.Request) {
		if p.Output != nil {
			io.Copy(p.Output, r.Body)
		}
	})
	mux.HandleFunc("POST /result", func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the browser ended; Run sees that
		}
		select {
		case result <- body:
		default: // the first counts
		}
	})
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	return "http://" + listener.Addr().String() + "/", server.Close, nil
}

// tail keeps the end of the text that is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-maxConsole):]
	return len(b), nil
}

// noise matches messages of browsers about running in containers.
var noise = []string{":ERROR:dbus/", "Failed to connect to the bus", "vaapi", "gcm/engine"}

// String returns the console's lines without the browser's own noise.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for line := range bytes.Lines(t.end) {
		if text := string(line); !contains(text, noise) {
			b.WriteString(text)
		}
	}
	return b.String()
}

func contains(text string, any []string) bool {
	return slices.ContainsFunc(any, func(a string) bool { return strings.Contains(text, a) })
}
