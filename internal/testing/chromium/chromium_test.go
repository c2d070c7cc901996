package chromium

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func page(script string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte("<!doctype html><script>" + script + "</script>"))
	})
}

func run(t *testing.T, p Page, limit time.Duration) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return p.Run(ctx)
}

func TestRun(t *testing.T) {
	Rest(t)
	var out strings.Builder
	r, err := run(t, Page{Handler: page(`
		(async () => {
			await fetch("/output", {method: "POST", body: "a"});
			await fetch("/output", {method: "POST", body: "b"});
			fetch("/result", {method: "POST", body: location.search});
		})()`), Path: "?x=1", Output: &out}, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, "?x=1", string(r))
	assert.Equal(t, "ab", out.String())
}

// stopper ends a context when something is written to it.
type stopper context.CancelFunc

func (s stopper) Write(b []byte) (int, error) {
	s()
	return len(b), nil
}

// A page that posts no result lasts until the context ends, and the error has its console.
func TestSilentPage(t *testing.T) {
	Rest(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	_, err := Page{Handler: page(`
		setTimeout(() => fetch("/output", {method: "POST", body: "now"}), 500);
		console.log("a line");
		undefined_function()`), Output: stopper(stop)}.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "a line")
	assert.ErrorContains(t, err, "undefined_function is not defined")
}

func TestNoBrowser(t *testing.T) {
	t.Setenv(Variable, "/no/such/browser")
	_, err := Find()
	require.ErrorContains(t, err, "CHROMIUM names /no/such/browser")
	t.Setenv(Variable, "")
	t.Setenv("PATH", t.TempDir())
	_, err = Find()
	require.ErrorIs(t, err, ErrNone)
}

// A browser that ends at once is an error at once.
func TestBrowserThatEnds(t *testing.T) {
	Rest(t)
	t.Setenv(Variable, "false")
	_, err := run(t, Page{Handler: page("")}, time.Hour)
	require.ErrorContains(t, err, "ended before the page had posted a result")
}
