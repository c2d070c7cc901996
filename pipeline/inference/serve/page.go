package serve

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed page
var page embed.FS

// policy permits the page its own script, style and requests, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageHandler serves the page to talk to the model.
func pageHandler() http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is valid
	}
	server := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Referrer-Policy", "no-referrer")
		server.ServeHTTP(w, r)
	})
}
