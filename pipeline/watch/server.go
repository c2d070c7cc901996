package watch

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// contentPolicy allows the page's own files and nothing else. Scripts and styles inside HTML do not run.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const streamPath = "/stream"

// Public reports whether a request is for a file of the page, which has nothing of the runs.
func Public(in *http.Request) bool { return in.URL.Path != streamPath }

// Handler serves the page, and the runs as a stream of server-sent events.
func (w *Watcher) Handler() http.Handler {
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET "+streamPath, w.stream)
	// X-Content-Type-Options is set by package httpserver.
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		header := out.Header()
		header.Set("Content-Security-Policy", contentPolicy)
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-cache")
		mux.ServeHTTP(out, in)
	})
}

func (w *Watcher) stream(out http.ResponseWriter, in *http.Request) {
	out.Header().Set("Content-Type", "text/event-stream")
	s := &stream{watcher: w, view: readView(in.URL.Query())}
	_ = s.serve(in.Context(), out) // the reader is gone
}
