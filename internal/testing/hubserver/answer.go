package hubserver

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// faulty serves requests with the faults that the server is asked for.
func (s *Server) faulty(serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.Host+r.URL.Path)
		var f Fault
		if s.Fault != nil {
			f = s.Fault(r)
		}
		s.mu.Unlock()
		switch {
		case f.Silent:
			_, _ = io.Copy(io.Discard, r.Body) // the server sees that the client leaves when it has read all
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case f.Empty:
			panic(http.ErrAbortHandler)
		case f.Status != 0:
			if f.RetryAfter != "" {
				w.Header().Set("Retry-After", f.RetryAfter)
			}
			failure(w, f.Status, "", http.StatusText(f.Status))
			return
		}
		if f.NoRange {
			r.Header.Del("Range")
		}
		serve(&broken{ResponseWriter: w, fault: f, request: r}, r)
	})
}

// broken is a response that something goes wrong with.
type broken struct {
	http.ResponseWriter
	fault   Fault
	request *http.Request
	sent    int64
	damaged bool
	file    bool // it sends a file, while others are served
}

func (b *broken) WriteHeader(status int) {
	if b.fault.Extra > 0 && status < 300 {
		b.Header().Del("Content-Length")
	}
	b.ResponseWriter.WriteHeader(status)
}

func (b *broken) Write(p []byte) (int, error) {
	n := len(p)
	if b.fault.Damage && b.file && !b.damaged && n > 0 { // TLS keeps answers of the API whole
		p = slices.Clone(p)
		p[n/2] ^= 1
		b.damaged = true
	}
	if cut := b.fault.Cut; cut > 0 && b.sent+int64(n) > cut {
		_, _ = b.ResponseWriter.Write(p[:cut-b.sent])
		b.ResponseWriter.(http.Flusher).Flush()
		if b.fault.Stall && b.file {
			<-b.request.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}
	b.sent += int64(n)
	return b.ResponseWriter.Write(p)
}

// answer serves the Hub's API and files.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := r.URL.EscapedPath()
	if api, ok := strings.CutPrefix(p, "/api/"); ok {
		if api == "repos/create" {
			s.create(w, r)
			return
		}
		if api == "validate-yaml" {
			sendJSON(w, map[string]any{"errors": []string{}, "warnings": []string{}})
			return
		}
		if cached, ok := strings.CutPrefix(api, "resolve-cache/"); ok {
			name, rest := names(cached)
			s.resolve(w, r, name, rest, false)
			return
		}
		s.api(w, r, api)
		return
	}
	p = strings.TrimPrefix(p, "/")
	if !strings.HasPrefix(p, "datasets/") {
		p = "models/" + p
	}
	if repo, ok := strings.CutSuffix(p, ".git/info/lfs/objects/batch"); ok {
		s.batch(w, r, repo)
		return
	}
	name, rest := names(p)
	if at, ok := strings.CutPrefix(rest, "resolve/"); ok {
		s.resolve(w, r, name, at, true)
		return
	}
	failure(w, http.StatusNotFound, "", "Not found")
}

func (s *Server) api(w http.ResponseWriter, r *http.Request, api string) {
	name, rest := names(api)
	action, at, _ := strings.Cut(rest, "/")
	at, folder, _ := strings.Cut(at, "/")
	revision, _ := url.PathUnescape(at)
	folder, _ = url.PathUnescape(folder)
	switch action {
	case "preupload":
		s.preupload(w, r, name)
		return
	case "commit":
		s.receive(w, r, name, revision)
		return
	case "", "revision", "tree", "paths-info":
	default:
		failure(w, http.StatusNotFound, "", "Not found")
		return
	}
	if revision == "" {
		revision = "main"
	}
	repo := s.access(w, r, name, false)
	if repo == nil {
		return
	}
	commit := repo.at(w, revision)
	switch {
	case commit == "":
	case action == "tree":
		s.tree(w, r, repo.commits[commit], folder)
	case action == "paths-info":
		s.pathsInfo(w, r, repo.commits[commit])
	default:
		siblings := []map[string]string{}
		for _, p := range slices.Sorted(maps.Keys(repo.commits[commit])) {
			siblings = append(siblings, map[string]string{"rfilename": p})
		}
		sendJSON(w, map[string]any{"id": strings.SplitN(name, "/", 2)[1], "sha": commit, "private": repo.private, "gated": repo.gated,
			"siblings": siblings, "tags": []string{}, "downloads": 0, "likes": 0})
	}
}

// resolve sends a small file from its second address, as the Hub does, and redirects to the storage for a large one.
func (s *Server) resolve(w http.ResponseWriter, r *http.Request, name, at string, redirect bool) {
	repo := s.access(w, r, name, true)
	if repo == nil {
		return
	}
	text, p, _ := strings.Cut(at, "/")
	revision, _ := url.PathUnescape(text)
	p, _ = url.PathUnescape(p)
	commit := repo.at(w, revision)
	if commit == "" {
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	f, ok := repo.commits[commit][p]
	switch {
	case !ok:
		failure(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
	case f.sha256 != "":
		w.Header().Set("X-Linked-Etag", `"`+f.sha256+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(f.content)))
		http.Redirect(w, r, s.storageURL()+"/"+f.sha256+"?X-Amz-Signature=secret", http.StatusFound)
	case redirect && r.Method == http.MethodGet:
		w.Header().Set("ETag", `"`+f.git+`"`)
		http.Redirect(w, r, "/api/resolve-cache/"+name+"/"+commit+"/"+(&url.URL{Path: p}).EscapedPath(), http.StatusTemporaryRedirect)
	default:
		w.Header().Set("ETag", `"`+f.git+`"`)
		s.mu.Unlock()
		defer s.mu.Lock() // the caller unlocks it
		sendContent(w, r, f.content)
	}
}

// fromStorage serves large files, and receives them.
func (s *Server) fromStorage(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if r.Header.Get("Authorization") != "" {
		s.leaks = append(s.leaks, r.Method+" "+r.URL.Path)
	}
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		defer s.mu.Unlock()
		s.upload(w, r)
		return
	}
	content, ok := s.objects[strings.TrimPrefix(r.URL.Path, "/")]
	s.mu.Unlock()
	if !ok || r.URL.Query().Get("X-Amz-Signature") != "secret" {
		failure(w, http.StatusForbidden, "", "AccessDenied")
		return
	}
	sendContent(w, r, content)
}

// sendContent sends a content, or its part from a byte on.
func sendContent(w http.ResponseWriter, r *http.Request, content []byte) {
	b := w.(*broken)
	b.file = true
	from, status := 0, http.StatusOK
	if text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		first, _, _ := strings.Cut(text, "-")
		n, err := strconv.Atoi(first)
		if err != nil || n >= len(content) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(content)))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		from, status = n, http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)-from))
	w.Header().Set("Accept-Ranges", "bytes")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	const chunk = 16 << 10
	for rest := content[from:]; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
		if _, err := w.Write(rest[:min(chunk, len(rest))]); err != nil {
			return
		}
	}
	_, _ = w.Write(make([]byte, b.fault.Extra))
}
