package hubserver

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// writer refuses requests without the token.
func (s *Server) writer(w http.ResponseWriter, r *http.Request) bool {
	if s.Token != "" && r.Header.Get("Authorization") == "Bearer "+s.Token {
		return true
	}
	failure(w, http.StatusUnauthorized, "", "Invalid username or password.")
	return false
}

// create makes an empty repository.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Name, Organization, Type, Visibility string
		Private                              bool
	}
	if !s.writer(w, r) || !decode(w, r, &q) {
		return
	}
	id := q.Name
	if q.Organization != "" {
		id = q.Organization + "/" + q.Name
	}
	kind := "models/"
	if q.Type == "dataset" {
		kind = "datasets/"
	}
	if s.repos[kind+id] != nil {
		failure(w, http.StatusConflict, "", "You already created this model repo")
		return
	}
	repo := s.repository(kind + id)
	repo.private = q.Private || q.Visibility == "private"
	s.commit(repo, "main", map[string]file{".gitattributes": s.store(".gitattributes", []byte("*.safetensors filter=lfs\n"))})
	sendJSON(w, map[string]string{"url": s.URL() + "/" + id, "name": id})
}

func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		failure(w, http.StatusBadRequest, "", err.Error())
		return false
	}
	return true
}

// preupload says which files go to the storage.
func (s *Server) preupload(w http.ResponseWriter, r *http.Request, name string) {
	var q struct {
		Files []struct {
			Path, Sample string
			Size         int
		}
	}
	if !s.writer(w, r) || s.access(w, r, name, false) == nil || !decode(w, r, &q) {
		return
	}
	out := []map[string]any{}
	for _, f := range q.Files {
		mode := "regular"
		if s.large(f.Path, f.Size) {
			mode = "lfs"
		}
		out = append(out, map[string]any{"path": f.Path, "uploadMode": mode, "shouldIgnore": false, "oid": nil})
	}
	sendJSON(w, map[string]any{"files": out})
}

// batch says where large files are uploaded, in the protocol of Git LFS.
func (s *Server) batch(w http.ResponseWriter, r *http.Request, name string) {
	var q struct {
		Objects []struct {
			OID  string
			Size int
		}
	}
	if !s.writer(w, r) || s.access(w, r, name, false) == nil || !decode(w, r, &q) {
		return
	}
	out := []map[string]any{}
	for _, o := range q.Objects {
		e := map[string]any{"oid": o.OID, "size": o.Size}
		if s.objects[o.OID] == nil {
			header := map[string]string{}
			to := s.storageURL() + "/" + o.OID
			if s.Part > 0 && o.Size > s.Part {
				header["chunk_size"] = strconv.Itoa(s.Part)
				for i := range (o.Size + s.Part - 1) / s.Part {
					header[fmt.Sprintf("%05d", i+1)] = fmt.Sprintf("%s?part=%d", to, i+1)
				}
			}
			e["actions"] = map[string]any{"upload": map[string]any{"href": to, "header": header}}
		}
		out = append(out, e)
	}
	sendJSON(w, map[string]any{"transfer": "basic", "objects": out})
}

// upload stores a large file, a part of one, or joins parts.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	oid := strings.TrimPrefix(r.URL.Path, "/")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if part := r.URL.Query().Get("part"); part != "" {
		s.parts[oid+" "+part] = body
		w.Header().Set("ETag", `"`+gitHash(body)+`"`)
		return
	}
	if r.Method == http.MethodPost {
		var q struct {
			OID   string
			Parts []struct {
				PartNumber int
				ETag       string
			}
		}
		if err := json.Unmarshal(body, &q); err != nil {
			failure(w, http.StatusBadRequest, "", err.Error())
			return
		}
		body = nil
		for _, p := range q.Parts {
			content := s.parts[fmt.Sprintf("%s %d", oid, p.PartNumber)]
			if strings.Trim(p.ETag, `"`) != gitHash(content) {
				failure(w, http.StatusBadRequest, "", "wrong etag")
				return
			}
			body = append(body, content...)
		}
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != oid {
		failure(w, http.StatusBadRequest, "", "the content has another hash")
		return
	}
	s.objects[oid] = body
}

// receive makes a commit of lines of JSON.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, name, revision string) {
	if !s.writer(w, r) {
		return
	}
	repo := s.access(w, r, name, false)
	if repo == nil || repo.at(w, revision) == "" {
		return
	}
	tree := maps.Clone(repo.commits[repo.refs[revision]])
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 1<<26)
	for n := 0; lines.Scan(); n++ {
		var line struct {
			Key   string
			Value struct{ Summary, Content, Path, Encoding, Algo, OID, ParentCommit string }
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || n == 0 && (line.Key != "header" || line.Value.Summary == "") {
			failure(w, http.StatusBadRequest, "", "expected a header with a summary")
			return
		}
		v := line.Value
		switch line.Key {
		case "header":
			if v.ParentCommit != "" && v.ParentCommit != repo.refs[revision] {
				failure(w, http.StatusPreconditionFailed, "", "A commit has happened since. Please refresh and try again.")
				return
			}
		case "file":
			content, err := base64.StdEncoding.DecodeString(v.Content)
			if err != nil || v.Encoding != "base64" {
				failure(w, http.StatusBadRequest, "", "expected base64")
				return
			}
			tree[v.Path] = file{content: content, git: gitHash(content)}
		case "lfsFile":
			content := s.objects[v.OID]
			if content == nil || v.Algo != "sha256" {
				failure(w, http.StatusBadRequest, "", "the storage has no such file: "+v.Path)
				return
			}
			tree[v.Path] = s.store(v.Path, content)
		case "deletedFile":
			delete(tree, v.Path)
		default:
			failure(w, http.StatusBadRequest, "", "unknown operation "+line.Key)
			return
		}
	}
	commit := s.commit(repo, revision, tree)
	sendJSON(w, map[string]any{"success": true, "commitOid": commit, "commitUrl": s.URL() + "/" + strings.TrimPrefix(name, "models/") + "/commit/" + commit})
}

// Files are the paths of a branch.
func (s *Server) Files(name, branch string) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	repo := s.repos[name]
	files := map[string][]byte{}
	if repo == nil {
		return files
	}
	for _, p := range slices.Sorted(maps.Keys(repo.commits[repo.refs[branch]])) {
		files[p] = repo.commits[repo.refs[branch]][p].content
	}
	return files
}
