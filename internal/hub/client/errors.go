package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/hub"
)

// status is a response that is no success.
type status struct {
	code     int
	kind     string        // X-Error-Code
	message  string        // X-Error-Message
	address  string        // without its query, which may be signed
	after    time.Duration // that the server asks to wait
	mayRetry bool
}

func (s *status) Error() string {
	text := fmt.Sprintf("%s: status %d", s.address, s.code)
	if what := strings.TrimSpace(s.message); what != "" {
		text += ": " + what
	}
	return text
}

// resets is the time until a limit of the Hub is lifted: RateLimit: "api";r=0;t=57.
var resets = regexp.MustCompile(`;\s*t=(\d+)`)

// statusOf reads a response that is no success.
func statusOf(res *http.Response) *status {
	s := &status{code: res.StatusCode, kind: res.Header.Get("X-Error-Code"), message: res.Header.Get("X-Error-Message"),
		address: withoutQuery(res.Request.URL.String())}
	switch s.code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		s.mayRetry = true
	}
	text := res.Header.Get("Retry-After")
	if m := resets.FindStringSubmatch(res.Header.Get("RateLimit")); m != nil && text == "" && s.code == http.StatusTooManyRequests {
		text = m[1]
	}
	if seconds, err := strconv.Atoi(text); err == nil && seconds >= 0 {
		s.after = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		s.after = max(0, time.Until(at))
	}
	if s.message == "" {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		if text := strings.TrimSpace(string(body)); !strings.HasPrefix(text, "<") {
			s.message = strings.Join(strings.Fields(text), " ")
		}
	}
	return s
}

// network is an error of a connection. Another attempt may succeed.
type network struct{ error }

func (n network) Unwrap() error { return n.error }

// unreachable marks an error as one of the network, unless the command was interrupted. Addresses lose their queries.
func unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) {
		return network{cause}
	} else if cause != nil {
		return cause
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = fmt.Errorf("%s: %w", withoutQuery(at.URL), at.Err)
	}
	return network{err}
}

// errIdle is the error of a connection that is silent for too long.
var errIdle = errors.New("the connection was silent for too long")

const (
	maxAttempts = 6 // without a byte
	maxAsked    = 10 * time.Minute
)

// persist repeats an attempt that the network or the server made fail, after a time that doubles, or for which the
// server asks, up to a number of attempts. One that has moved data begins the count again.
func (c *Client) persist(ctx context.Context, attempts int, attempt func() (moved bool, err error)) error {
	pause := time.Second
	for tries := 1; ; tries++ {
		moved, err := attempt()
		if err == nil || ctx.Err() != nil || !mayRetry(err) {
			return err
		}
		var s *status
		errors.As(err, &s)
		if moved {
			tries, pause = 1, time.Second
		}
		after := pause
		if s != nil && s.after > 0 {
			after = s.after
		}
		if tries >= attempts || after > maxAsked {
			return err
		}
		if s != nil && s.code == http.StatusTooManyRequests && after > 5*time.Second {
			c.limited.Do(func() { c.options.Note("the Hub has had too many requests (status 429) and asks to wait %v", after) })
		}
		if err := c.options.Wait(ctx, after); err != nil {
			return err
		}
		pause *= 2
	}
}

// errDown stands for the error of an earlier request.
var errDown = errors.New("the Hub has failed before")

// mayRetry reports whether another attempt may succeed.
func mayRetry(err error) bool {
	var s *status
	return errors.As(err, new(network)) || errors.As(err, &s) && s.mayRetry
}

// explain says of an error about a repository what to do.
func (c *Client) explain(n hub.Name, err error) error {
	var s *status
	var broken network
	switch {
	case errors.As(err, &s):
		return fmt.Errorf("%s: %s", n.Text(), c.advice(n, s))
	case errors.As(err, &broken):
		return fmt.Errorf("%s: the Hub at %s cannot be reached: %w; what has arrived is kept, and the same command continues",
			n.Text(), c.options.Endpoint, err)
	}
	return fmt.Errorf("%s: %w", n.Text(), err)
}

func (c *Client) advice(n hub.Name, s *status) string {
	what := fmt.Sprintf("the %s %s", n.Kind, n.ID)
	tokens := c.options.Endpoint + "/settings/tokens"
	switch {
	case strings.Contains(s.message, "Invalid credentials"), strings.Contains(s.message, "Invalid username or password") &&
		c.options.Token != "":
		return fmt.Sprintf("the Hub does not accept the token from %s: make a new one at %s", c.options.TokenFrom, tokens)
	case s.kind == "GatedRepo" && c.options.Token == "":
		return fmt.Sprintf("%s is gated: accept its conditions at %s, make a token at %s and set HF_TOKEN to it", what, c.page(n), tokens)
	case s.kind == "GatedRepo":
		return fmt.Sprintf("%s is gated, and the account of the token from %s has no access: accept its conditions at %s, and wait if its authors grant access themselves",
			what, c.options.TokenFrom, c.page(n))
	case s.kind == "RevisionNotFound":
		text := fmt.Sprintf("%s has no revision %s: %s/refs lists them", what, n.Revision, c.page(n))
		if n.Path != "" && n.Kind == hub.DataSets {
			text += "; in the name of a file, ? stands for @"
		}
		return text
	case s.kind == "EntryNotFound":
		return fmt.Sprintf("%s has no such file at %s: %s", what, n.Revision, s.address)
	case s.message == "Access to this resource is disabled.":
		return what + " is disabled on the Hub"
	case s.code == http.StatusTooManyRequests && c.options.Token == "":
		return fmt.Sprintf("the Hub has had too many requests (status 429)%s: wait, or set HF_TOKEN, which raises the limit", asked(s))
	case s.code == http.StatusTooManyRequests:
		return fmt.Sprintf("the Hub has had too many requests (status 429)%s: wait, and repeat the command", asked(s))
	case s.kind == "RepoNotFound" || s.code == http.StatusNotFound || s.code == http.StatusUnauthorized:
		return c.noRepository(n, tokens)
	case s.code == http.StatusForbidden:
		return fmt.Sprintf("the Hub forbids access (%v): the token from %s needs the right to it, see %s", s, orNone(c.options.TokenFrom), tokens)
	case s.mayRetry:
		return fmt.Sprintf("the Hub fails (%v): what has arrived is kept, and the same command continues", s)
	}
	return s.Error()
}

func (c *Client) noRepository(n hub.Name, tokens string) string {
	text := fmt.Sprintf("%s has no %s %s, or it is private: check the name", c.options.Endpoint, n.Kind, n.ID)
	if n.Kind == hub.Models {
		text += fmt.Sprintf(" (a data set is hf:datasets/%s)", n.ID)
	}
	if c.options.Token == "" {
		return text + "; for a private one make a token at " + tokens + " and set HF_TOKEN to it"
	}
	return text + ", and whether the account of the token from " + c.options.TokenFrom + " may read it"
}

// asked says for how long a server asks to wait.
func asked(s *status) string {
	if s.after == 0 {
		return ""
	}
	return fmt.Sprintf(", for the next %v", s.after.Round(time.Second))
}

func orNone(from string) string {
	if from == "" {
		return "HF_TOKEN, which is not set,"
	}
	return from
}
