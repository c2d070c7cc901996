// Package client downloads from the Hugging Face Hub into its cache, as huggingface_hub does, and uploads to it.
//
// Fetch asks for the commit of a revision and for the list of its files, chooses those that a use needs, and downloads
// what is missing: files at once in several connections, each resumed where its connection broke, compared with its
// hash before it gets its name, and locked against other processes. Push uploads files as one commit.
//
// The token is sent to the endpoint alone, also where it redirects to the storage of large files.
package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/diskspace"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/sleep"
	"github.com/gpupipe/gpupipe/internal/version"
)

const (
	defaultEndpoint = "https://huggingface.co"
	maxAnswer       = 256 << 20 // of the API; the list of a million files is smaller
	maxRedirects    = 10
)

// Options configure a client.
type Options struct {
	Endpoint  string        // address of the Hub
	Token     string        // "": none
	TokenFrom string        // where the token is from, in words
	Idle      time.Duration // for which a connection may be silent
	Answer    time.Duration // for which the Hub may be silent after it has got an upload

	// Progress and Note are called by one goroutine at a time.
	Progress  func(done, total int64)                    // bytes of files; optional
	Note      func(format string, args ...any)           // what a user should know; optional
	CheckData func(path string) error                    // refuses files of a data set by their names; nil: none
	Free      func(dir string) (int64, bool)             // bytes that a folder's disk has free, if that is known
	Wait      func(context.Context, time.Duration) error // waits before another attempt
}

// FromEnvironment are the options that the variables of huggingface_hub give. explicit says that the user has asked for
// what needs a token: HF_HUB_DISABLE_IMPLICIT_TOKEN does not count.
func FromEnvironment(explicit bool) (Options, error) {
	o := Options{Endpoint: strings.TrimRight(cmp.Or(os.Getenv("HF_ENDPOINT"), defaultEndpoint), "/"), Idle: 10 * time.Second,
		Answer: 2 * time.Minute, Free: diskspace.Free, Wait: wait}
	if text := os.Getenv("HF_HUB_DOWNLOAD_TIMEOUT"); text != "" {
		seconds, err := time.ParseDuration(text + "s")
		if err != nil || seconds <= 0 {
			return o, fmt.Errorf("HF_HUB_DOWNLOAD_TIMEOUT: found %q, expected seconds", text)
		}
		o.Idle = seconds
	}
	at, err := url.Parse(o.Endpoint)
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" {
		return o, fmt.Errorf("HF_ENDPOINT: found %q, expected an address such as %s", o.Endpoint, defaultEndpoint)
	}
	if explicit || !hub.IsTrue(os.Getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		o.Token, o.TokenFrom, err = token()
	}
	return o, err
}

// token is the token of the environment, or that which hf auth login keeps.
func token() (token, from string, err error) {
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if token = strings.TrimSpace(os.Getenv(name)); token != "" {
			return token, name, checkToken(token, name)
		}
	}
	path := hub.TokenPath()
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	token = strings.TrimSpace(string(text))
	return token, path, cmp.Or(err, checkToken(token, path))
}

// checkToken refuses what cannot be a token, without printing it.
func checkToken(token, from string) error {
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%s: found characters that no token has", from)
	}
	return nil
}

// wait waits until a time has passed or the context ends.
func wait(ctx context.Context, d time.Duration) error {
	sleep.For(d, ctx.Done())
	return ctx.Err()
}

// Client asks one Hub.
type Client struct {
	options Options
	http    *http.Client
	done    meter
	limited sync.Once // a note has said that the Hub asks to wait
	down    bool      // the Hub did not answer the last request for a list: what the cache has is used without asking again
}

// New returns a client. Close it.
func New(o Options) (*Client, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	note, progress := o.Note, o.Progress
	o.Note = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if note != nil {
			note(format, args...)
		}
	}
	o.Progress = func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if progress != nil {
			progress(done, total)
		}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = workers // each request has a watch, which ends it if there is no answer
	t.DialContext = (&net.Dialer{Timeout: o.Idle}).DialContext
	c := &Client{options: o, done: meter{report: o.Progress}}
	c.http = &http.Client{Transport: &authorized{t, endpoint, o.Token}, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("%d redirects", maxRedirects)
		}
		return nil
	}}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// authorized adds the token to requests to the endpoint, and removes it from all others.
type authorized struct {
	*http.Transport
	endpoint *url.URL
	token    string
}

func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	r.Header.Del("Referer") // addresses of storage are signed
	r.Header.Set("User-Agent", "gpupipe/"+version.String())
	if a.token != "" && r.URL.Scheme == a.endpoint.Scheme && r.URL.Host == a.endpoint.Host {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.Transport.RoundTrip(r)
}

// request is one to the Hub or its storage.
type request struct {
	method, url string
	header      map[string]string
	body        func() io.Reader // a new one for each attempt: something may still read the last one; nil: none
	size        int64            // of the body
	once        bool             // it is not repeated
}

// send sends a request once. A response that is no success is an error.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		body = io.NopCloser(r.body())
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.ContentLength = r.size
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(r.body()), nil }
	}
	for key, value := range r.header {
		req.Header.Set(key, value)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, statusOf(res)
	}
	return res, nil
}

// ask sends a request until it is answered, decodes the answer, and returns the address of the next page.
func (c *Client) ask(ctx context.Context, r request, answer any) (next string, err error) {
	text, next, err := c.text(ctx, r)
	if err != nil || answer == nil {
		return next, err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return "", fmt.Errorf("%s: found an answer that is not of the Hub: %w", withoutQuery(r.url), err)
	}
	return next, nil
}

// text sends a request until it is answered, and returns the answer and the address of the next page.
func (c *Client) text(ctx context.Context, r request) (text []byte, next string, err error) {
	attempts := maxAttempts
	if r.once {
		attempts = 1
	}
	err = c.persist(ctx, attempts, func() (bool, error) {
		ctx, watch := watched(ctx, c.silence(r.method))
		defer watch.stop()
		res, err := c.send(ctx, r)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		if text, err = io.ReadAll(io.LimitReader(watch.reader(res.Body), maxAnswer)); err != nil {
			return false, unreachable(ctx, err)
		}
		next = nextPage(res)
		return false, nil
	})
	return text, next, err
}

// silence is the time for which the Hub may be silent about a request.
func (c *Client) silence(method string) time.Duration {
	if method == http.MethodGet {
		return c.options.Idle
	}
	return max(c.options.Idle, c.options.Answer)
}

// nextPage is the address of the next page of a list; "": there is none.
func nextPage(res *http.Response) string {
	for _, link := range strings.Split(res.Header.Get("Link"), ",") {
		if to, rel, ok := strings.Cut(strings.TrimSpace(link), ">"); ok && strings.Contains(rel, `rel="next"`) {
			if at, err := res.Request.URL.Parse(strings.TrimPrefix(to, "<")); err == nil {
				return at.String()
			}
		}
	}
	return ""
}

// api is an address of the API for a repository.
func (c *Client) api(n hub.Name, elements ...string) string {
	at := c.options.Endpoint + "/api/" + n.Kind.InAPI() + "/" + n.ID
	for _, e := range elements {
		at += "/" + url.PathEscape(e)
	}
	return at
}

// page is the address of a repository on the Hub's site.
func (c *Client) page(n hub.Name) string {
	if n.Kind == hub.DataSets {
		return c.options.Endpoint + "/datasets/" + n.ID
	}
	return c.options.Endpoint + "/" + n.ID
}

// withoutQuery is an address without what may sign it.
func withoutQuery(address string) string {
	before, _, _ := strings.Cut(address, "?")
	return before
}
