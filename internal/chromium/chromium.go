// Package chromium opens a page in a headless Chromium and waits for what the page has to say. It needs no driver: the page is
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
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// Variable is the environment variable that says which browser to take; None is its value that asks to leave out what needs one.
const (
	Variable = "CHROMIUM"
	None     = "none"
)

// ErrNone says that there is no browser.
var ErrNone = errors.New("no Chromium found: install chromium (on Debian: apt-get install chromium) or Google Chrome, name one in " + Variable +
	", or leave out what needs one with " + Variable + "=" + None)

// Unwanted tells whether the user has asked to leave out what needs a browser.
func Unwanted() bool { return os.Getenv(Variable) == None }

// Find gives the path of a Chromium.
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

// flags make a browser without window, sandbox (containers rarely allow it; the page is ours), profile or use of the network,
// with WebGPU, in software where there is no GPU.
func flags(profile string) []string {
	return []string{"--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--disable-dev-shm-usage", "--user-data-dir=" + profile,
		"--enable-logging=stderr", "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-sync", "--disable-breakpad",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability", "--no-pings",
		"--disable-features=Translate,OptimizationHints,MediaRouter", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"}
}

// Page is what a browser is shown.
type Page struct {
	Handler http.Handler // serves it; what the page posts to /result ends its life
	Path    string       // of the page, with its query
	Output  io.Writer    // what it posts to /output; nil drops that
}

// maxConsole bounds what is kept of a browser's console, in bytes.
const maxConsole = 64 << 10

// Run shows a page until it has posted its result, which is returned. Errors end with what the browser's console had.
func (p Page) Run(ctx context.Context) ([]byte, error) {
	browser, err := Find()
	if err != nil {
		return nil, err
	}
	profile, remove, err := atomicfile.Temporary("gpupipe-chromium")
	if err != nil {
		return nil, err
	}
	defer func() { _ = remove() }() // what the browser still writes is swept away later
	result := make(chan []byte, 1)
	address, stop, err := p.serve(result)
	if err != nil {
		return nil, err
	}
	defer stop()
	console := &tail{}
	cmd := exec.Command(browser, append(flags(profile), address+p.Path)...)
	cmd.Stdout, cmd.Stderr = console, console
	cmd.Env = append(os.Environ(), "HOME="+profile, "XDG_CONFIG_HOME="+filepath.Join(profile, "config"), "XDG_CACHE_HOME="+filepath.Join(profile, "cache"))
	cmd.WaitDelay = time.Second // children that outlive it hold its output
	group(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case r := <-result:
		kill(cmd)
		<-ended
		return r, nil
	case <-ctx.Done():
		kill(cmd)
		<-ended
		return nil, fmt.Errorf("the page has posted no result: %w; the browser's console:\n%s", context.Cause(ctx), console)
	case err := <-ended:
		kill(cmd) // what it left behind
		return nil, fmt.Errorf("%s ended before the page had posted a result (%v); its console:\n%s", browser, err, console)
	}
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
			return // the browser went away, which Run sees
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

// tail keeps the end of what is written to it.
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

// noise is what browsers in containers say about themselves.
var noise = []string{":ERROR:dbus/", "Failed to connect to the bus", "vaapi", "gcm/engine"}

// String leaves out what has nothing to do with the page.
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
	for _, a := range any {
		if strings.Contains(text, a) {
			return true
		}
	}
	return false
}
