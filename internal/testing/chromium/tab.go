package chromium

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// Tab is a page that a test looks at and acts on, through the DevTools protocol. It is for one goroutine.
type Tab struct {
	browser    *browser
	connection *websocket.Conn
	calls      int
}

// maxAnswer is the largest answer of the browser, in bytes: a screenshot.
const maxAnswer = 64 << 20

// Open opens an address in a headless browser, and waits until the page is loaded.
func Open(ctx context.Context, address string) (*Tab, error) {
	b, err := start("about:blank", "--remote-debugging-port=0")
	if err != nil {
		return nil, err
	}
	t := &Tab{browser: b}
	if err := t.connect(ctx); err != nil {
		t.Close()
		return nil, fmt.Errorf("%w; the browser's console:\n%s", err, b.console)
	}
	if _, err = t.call(ctx, "Page.navigate", map[string]any{"url": address}); err == nil {
		err = t.Await(ctx, `document.readyState === "complete"`)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Close ends the browser.
func (t *Tab) Close() {
	if t.connection != nil {
		t.connection.CloseNow()
	}
	t.browser.close()
}

// connect connects to the first page of the browser, when it is there.
func (t *Tab) connect(ctx context.Context) error {
	const pause = 50 * time.Millisecond
	for {
		target, err := t.target(ctx)
		if err == nil {
			t.connection, _, err = websocket.Dial(ctx, target, nil)
			if err == nil {
				t.connection.SetReadLimit(maxAnswer)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the browser has opened no page: %w (%w)", context.Cause(ctx), err)
		case <-t.browser.ended:
			return fmt.Errorf("the browser has ended: %v", t.browser.err)
		case <-time.After(pause):
		}
	}
}

// target is the address of the page's connection. The browser writes its port into its profile.
func (t *Tab) target(ctx context.Context) (string, error) {
	text, err := os.ReadFile(filepath.Join(t.browser.profile, "DevToolsActivePort"))
	if err != nil {
		return "", err
	}
	port, _, _ := strings.Cut(string(text), "\n")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/json/list", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var pages []struct {
		Type string `json:"type"`
		URL  string `json:"webSocketDebuggerUrl"`
	}
	if err := json.NewDecoder(response.Body).Decode(&pages); err != nil {
		return "", err
	}
	for _, p := range pages {
		if p.Type == "page" {
			return p.URL, nil
		}
	}
	return "", errors.New("the browser has no page")
}

// call calls a method of the protocol and waits for its result. Events are dropped.
func (t *Tab) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	t.calls++
	request, err := json.Marshal(map[string]any{"id": t.calls, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	if err := t.connection.Write(ctx, websocket.MessageText, request); err != nil {
		return nil, err
	}
	for {
		_, text, err := t.connection.Read(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; the browser's console:\n%s", method, err, t.browser.console)
		}
		var answer struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return nil, err
		}
		switch {
		case answer.ID != t.calls:
		case answer.Error != nil:
			return nil, fmt.Errorf("%s: %s", method, answer.Error.Message)
		default:
			return answer.Result, nil
		}
	}
}

// Evaluate evaluates an expression in the page, waits for it if it is a promise, and decodes its value into out, unless
// that is nil.
func (t *Tab) Evaluate(ctx context.Context, expression string, out any) error {
	text, err := t.call(ctx, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
	if err != nil {
		return err
	}
	var answer struct {
		Result    struct{ Value json.RawMessage }
		Exception *struct {
			Exception struct{ Description string }
			Text      string
		} `json:"exceptionDetails"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	if x := answer.Exception; x != nil {
		return fmt.Errorf("%s: %s %s", expression, x.Text, x.Exception.Description)
	}
	if out == nil || answer.Result.Value == nil {
		return nil
	}
	return json.Unmarshal(answer.Result.Value, out)
}

// Await waits until an expression is true.
func (t *Tab) Await(ctx context.Context, expression string) error {
	const pause = 50 * time.Millisecond
	for {
		var is bool
		err := t.Evaluate(ctx, "Boolean("+expression+")", &is)
		if is || err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "context was destroyed") {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not true: %w; the browser's console:\n%s", expression, context.Cause(ctx), t.browser.console)
		case <-time.After(pause):
		}
	}
}

// Resize gives the page a width and a height in CSS pixels.
func (t *Tab) Resize(ctx context.Context, width, height int) error {
	_, err := t.call(ctx, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": false})
	return err
}

// Scheme makes the page believe that the system's colors are "dark" or "light".
func (t *Tab) Scheme(ctx context.Context, scheme string) error {
	_, err := t.call(ctx, "Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
	return err
}

// Screenshot is the visible part of the page, as PNG.
func (t *Tab) Screenshot(ctx context.Context) ([]byte, error) {
	text, err := t.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png"})
	if err != nil {
		return nil, err
	}
	var answer struct{ Data string }
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(answer.Data)
}
