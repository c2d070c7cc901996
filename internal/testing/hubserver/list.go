package hubserver

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// entry is a file as the Hub's API describes it.
func entry(path string, f file) map[string]any {
	e := map[string]any{"type": "file", "path": path, "size": len(f.content), "oid": f.git}
	if f.sha256 != "" {
		e["lfs"] = map[string]any{"oid": f.sha256, "size": len(f.content), "pointerSize": 134}
	}
	return e
}

// list returns the files and folders in a folder of a tree, or all below it; "" is the root.
func list(files map[string]file, folder string, recursive bool) (entries []map[string]any) {
	prefix := ""
	if folder != "" {
		prefix = folder + "/"
	}
	seen := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		rest, ok := strings.CutPrefix(p, prefix)
		if !ok {
			continue
		}
		deep := false
		for i, c := range rest {
			if c != '/' || deep && !recursive {
				continue
			}
			deep = true
			if dir := prefix + rest[:i]; !seen[dir] {
				seen[dir] = true
				entries = append(entries, map[string]any{"type": "directory", "path": dir, "size": 0, "oid": gitHash([]byte(dir))})
			}
		}
		if !deep || recursive {
			entries = append(entries, entry(p, files[p]))
		}
	}
	return entries
}

// tree lists a folder of a commit in pages.
func (s *Server) tree(w http.ResponseWriter, r *http.Request, files map[string]file, folder string) {
	q := r.URL.Query()
	entries := list(files, folder, strings.EqualFold(q.Get("recursive"), "true"))
	if folder != "" && len(entries) == 0 {
		failure(w, http.StatusNotFound, "EntryNotFound", folder+" does not exist")
		return
	}
	from, _ := strconv.Atoi(q.Get("cursor"))
	to := len(entries)
	if s.PageSize > 0 && from+s.PageSize < to {
		to = from + s.PageSize
		q.Set("cursor", strconv.Itoa(to))
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?%s>; rel="next"`, s.URL(), r.URL.EscapedPath(), q.Encode()))
	}
	sendJSON(w, append([]map[string]any{}, entries[from:to]...))
}

// pathsInfo describes the files and folders that a form names, and omits those that are not there.
func (s *Server) pathsInfo(w http.ResponseWriter, r *http.Request, files map[string]file) {
	if err := r.ParseForm(); err != nil {
		failure(w, http.StatusBadRequest, "", err.Error())
		return
	}
	entries := []map[string]any{}
	for _, p := range r.PostForm["paths"] {
		p = strings.Trim(p, "/")
		if f, ok := files[p]; ok {
			entries = append(entries, entry(p, f))
		} else if len(list(files, p, false)) > 0 {
			entries = append(entries, map[string]any{"type": "directory", "path": p, "size": 0, "oid": gitHash([]byte(p))})
		}
	}
	sendJSON(w, entries)
}
