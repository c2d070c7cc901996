// Package hubserver behaves as the Hugging Face Hub does, for tests: its API, redirects of large files to a storage at
// another host, ranges, hashes, gated and private repositories, commits, and on demand faults of the server and of
// connections.
package hubserver

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// file is a file of a repository.
type file struct {
	content []byte
	git     string // Git's hash of it, or of the pointer to it
	sha256  string // of a large file; "": it is small
}

// repository is one of the Hub's.
type repository struct {
	commits map[string]map[string]file
	refs    map[string]string
	private bool
	gated   bool
}

// Fault is what goes wrong with a response.
type Fault struct {
	Status     int    // instead of an answer
	RetryAfter string // header of the status
	Cut        int64  // bytes of content after which the connection breaks; 0: it does not
	Stall      bool   // where it would break, it stays silent until the client leaves
	Damage     bool   // a bit of the content is wrong
	NoRange    bool   // ranges are ignored
	Extra      int    // bytes behind the content
	Empty      bool   // the connection is closed without a response
	Silent     bool   // there is no response until the client leaves
}

// Server is a Hub. Its fields are set before its first request.
type Server struct {
	Token    string                          // that requests need; "": none
	Access   bool                            // the token's account may read gated repositories
	PageSize int                             // entries in an answer with a list; 0: all
	Fault    func(r *http.Request) (f Fault) // called for each request; nil: nothing goes wrong
	Small    int                             // bytes up to which a file is small, whatever its name
	Part     int                             // bytes of a part of an upload in parts; 0: in one

	mu       sync.Mutex
	repos    map[string]*repository
	objects  map[string][]byte // large files by their hash
	parts    map[string][]byte
	requests []string
	leaks    []string // requests to the storage that had the token

	hub, storage net.Listener
}

// Start serves on two ports of this machine, the storage by another name of it.
func (s *Server) Start() error {
	s.repos, s.objects, s.parts = map[string]*repository{}, map[string][]byte{}, map[string][]byte{}
	var err error
	if s.hub, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	if s.storage, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go http.Serve(s.hub, s.faulty(s.answer))          //nolint:errcheck // until Close
	go http.Serve(s.storage, s.faulty(s.fromStorage)) //nolint:errcheck // until Close
	return nil
}

// URL is the address of the Hub.
func (s *Server) URL() string { return "http://" + s.hub.Addr().String() }

func (s *Server) storageURL() string {
	_, port, _ := net.SplitHostPort(s.storage.Addr().String())
	return "http://localhost:" + port
}

// Close ends both.
func (s *Server) Close() {
	s.hub.Close()
	s.storage.Close()
}

// Requests are those that were made: method, host and path.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Leaks are the requests to the storage that had the token, which is for the Hub alone.
func (s *Server) Leaks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.leaks)
}

// Private hides a repository from those without the token. Gated shows it to them, without its files.
func (s *Server) Private(name string) { s.repository(name).private = true }

// Gated makes a repository one whose conditions must be accepted.
func (s *Server) Gated(name string) { s.repository(name).gated = true }

func (s *Server) repository(name string) *repository {
	r, ok := s.repos[name]
	if !ok {
		r = &repository{commits: map[string]map[string]file{}, refs: map[string]string{}}
		s.repos[name] = r
	}
	return r
}

// Add makes a commit of files at a branch of models/ORG/NAME or datasets/ORG/NAME, and returns it. Files of earlier
// commits are not in it.
func (s *Server) Add(name, branch string, files map[string][]byte) (commit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tree := map[string]file{}
	for p, content := range files {
		tree[p] = s.store(p, content)
	}
	return s.commit(s.repository(name), branch, tree)
}

// commit names a tree by its content.
func (s *Server) commit(r *repository, branch string, tree map[string]file) string {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d", branch, len(r.commits))
	for _, p := range slices.Sorted(maps.Keys(tree)) {
		fmt.Fprintf(h, "%s %s\n", p, tree[p].git)
	}
	commit := hex.EncodeToString(h.Sum(nil))
	r.commits[commit], r.refs[branch] = tree, commit
	return commit
}

// store decides where a file is kept.
func (s *Server) store(p string, content []byte) file {
	f := file{content: content, git: gitHash(content)}
	if s.large(p, len(content)) {
		sum := sha256.Sum256(content)
		f.sha256 = hex.EncodeToString(sum[:])
		f.git = gitHash(fmt.Appendf(nil, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", f.sha256, len(content)))
		s.objects[f.sha256] = content
	}
	return f
}

// large reports whether the Hub keeps a file in its storage.
func (s *Server) large(p string, size int) bool {
	return size > s.Small && slices.Contains([]string{".safetensors", ".parquet", ".gguf", ".bin", ".arrow", ".model", ".png"}, path.Ext(p))
}

func gitHash(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// failure is an answer with the Hub's headers of errors.
func failure(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", message)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":%q}`, message)
}

// access finds a repository that the request may read; nil: it was refused.
func (s *Server) access(w http.ResponseWriter, r *http.Request, name string, files bool) *repository {
	known := s.Token != "" && r.Header.Get("Authorization") == "Bearer "+s.Token
	if s.Token != "" && r.Header.Get("Authorization") != "" && !known {
		failure(w, http.StatusUnauthorized, "", "Invalid credentials in Authorization header")
		return nil
	}
	repo := s.repos[name]
	switch {
	case (repo == nil || repo.private) && !known:
		failure(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
	case repo == nil:
		failure(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
	case repo.gated && files && !known:
		failure(w, http.StatusUnauthorized, "GatedRepo", "Access to model is restricted. You must have access to it and be authenticated to access it.")
	case repo.gated && files && !s.Access:
		failure(w, http.StatusForbidden, "GatedRepo", "Access to model is restricted and you are not in the authorized list.")
	default:
		return repo
	}
	return nil
}

// at finds the commit of a revision; "": it was refused.
func (repo *repository) at(w http.ResponseWriter, revision string) string {
	if commit, ok := repo.refs[revision]; ok {
		return commit
	}
	if _, ok := repo.commits[revision]; ok {
		return revision
	}
	failure(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
	return ""
}

func sendJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// names cuts a path behind the repository that it names: kind, ORG/NAME, the rest.
func names(p string) (name, rest string) {
	parts := strings.SplitN(strings.TrimPrefix(p, "/"), "/", 4)
	if len(parts) < 3 || parts[0] != "models" && parts[0] != "datasets" {
		return "", ""
	}
	if len(parts) < 4 {
		parts = append(parts, "")
	}
	return strings.Join(parts[:3], "/"), parts[3]
}
