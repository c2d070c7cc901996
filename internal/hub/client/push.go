package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpupipe/gpupipe/internal/hub"
)

const (
	sampleSize = 512 // bytes of a file by which the Hub decides how it keeps it
	perRequest = 256 // files
)

// Upload is a file to upload.
type Upload struct {
	Path string // in the repository
	File string // on this machine
}

// PushOptions describe a commit.
type PushOptions struct {
	Message string // its first line
	Private bool   // if the repository is new

	Replaces func(path string) bool // files of an earlier upload, which are deleted; optional
	Card     string                 // a text in each README.md that the caller has made; a note says if another is replaced
}

// CheckToken returns an error unless there is a token, which an upload needs.
func (c *Client) CheckToken(n hub.Name) error {
	if c.options.Token != "" {
		return nil
	}
	return fmt.Errorf("%s: an upload needs a token with the right to write: make one at %s/settings/tokens and set HF_TOKEN to it",
		n.Text(), c.options.Endpoint)
}

// Push uploads files as one commit on the revision of a repository, which it makes if there is none. Files that the
// repository has already are replaced, and files of an earlier upload deleted; others stay. It returns the commit's
// address.
func (c *Client) Push(ctx context.Context, n hub.Name, uploads []Upload, o PushOptions) (address string, err error) {
	if err := c.CheckToken(n); err != nil {
		return "", err
	}
	if err := c.create(ctx, n, o.Private); err != nil {
		return "", c.explain(n, err)
	}
	files, err := opened(uploads)
	defer closeAll(files)
	if err != nil {
		return "", err
	}
	if err := c.modes(ctx, n, files); err != nil {
		return "", c.explain(n, err)
	}
	if err := c.store(ctx, n, files); err != nil {
		return "", c.explain(n, err)
	}
	old, err := c.replaced(ctx, n, files, o)
	if err != nil {
		return "", c.explain(n, err)
	}
	address, err = c.commit(ctx, n, files, old, o.Message)
	if err != nil {
		return "", c.explain(n, err)
	}
	return address, nil
}

// upload is an open file.
type upload struct {
	path  string // in the repository
	file  *os.File
	size  int64
	large bool
	oid   string // SHA-256 of a large file
}

func opened(uploads []Upload) (files []*upload, err error) {
	for _, u := range uploads {
		f, err := os.Open(u.File)
		if err != nil {
			return files, err
		}
		st, err := f.Stat()
		if err != nil {
			return files, errors.Join(err, f.Close())
		}
		files = append(files, &upload{path: path.Clean(u.Path), file: f, size: st.Size()})
	}
	return files, nil
}

func closeAll(files []*upload) {
	for _, f := range files {
		f.file.Close()
	}
}

// create makes a repository unless there is one.
func (c *Client) create(ctx context.Context, n hub.Name, private bool) error {
	org, name, ok := strings.Cut(n.ID, "/")
	if !ok {
		return fmt.Errorf("expected org/name, where org is your account or an organization")
	}
	q := map[string]string{"name": name, "organization": org, "type": strings.TrimSuffix(n.Kind.InAPI(), "s")}
	if private {
		q["visibility"] = "private"
	}
	err := c.post(ctx, c.options.Endpoint+"/api/repos/create", nil, q, nil)
	var s *status
	if !errors.As(err, &s) {
		return err
	}
	switch s.code {
	case http.StatusConflict:
		return nil
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden: // a token for some repositories makes none
		if _, missing := c.ask(ctx, request{method: http.MethodGet, url: c.api(n)}, nil); missing == nil {
			return nil
		}
	}
	return err
}

// replaced returns the files of the repository that the upload deletes, and notes that it replaces a card of another
// author.
func (c *Client) replaced(ctx context.Context, n hub.Name, files []*upload, o PushOptions) (old []string, err error) {
	s := &source{Name: n}
	if err := c.list(ctx, s, false); err != nil {
		return nil, err
	}
	for _, f := range s.files {
		pushed := slices.ContainsFunc(files, func(u *upload) bool { return u.path == f.Path })
		switch {
		case !pushed && o.Replaces != nil && o.Replaces(f.Path):
			old = append(old, f.Path)
		case pushed && f.Path == "README.md":
			text, _, err := c.text(ctx, request{method: http.MethodGet, url: c.resolved(s, f)})
			if err != nil {
				return nil, err
			}
			if !strings.Contains(string(text), o.Card) {
				c.options.Note("README.md, which gpupipe has not written, is replaced: %s/blob/%s/README.md keeps it", c.page(n), s.commit)
			}
		}
	}
	return old, nil
}

// post sends an object of JSON.
func (c *Client) post(ctx context.Context, to string, header map[string]string, object, answer any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	all := map[string]string{"Content-Type": "application/json"}
	maps.Copy(all, header)
	_, err = c.ask(ctx, request{method: http.MethodPost, url: to, header: all, body: bytesOf(text), size: int64(len(text))}, answer)
	return err
}

// bytesOf makes bodies of bytes.
func bytesOf(text []byte) func() io.Reader {
	return func() io.Reader { return bytes.NewReader(text) }
}

// modes asks which files are large.
func (c *Client) modes(ctx context.Context, n hub.Name, files []*upload) error {
	for part := range slices.Chunk(files, perRequest) {
		type file struct {
			Path   string `json:"path"`
			Sample string `json:"sample"`
			Size   int64  `json:"size"`
		}
		var q struct {
			Files []file `json:"files"`
		}
		for _, f := range part {
			sample := make([]byte, min(sampleSize, f.size))
			if _, err := f.file.ReadAt(sample, 0); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			q.Files = append(q.Files, file{f.path, base64.StdEncoding.EncodeToString(sample), f.size})
		}
		var answer struct {
			Files []struct{ Path, UploadMode string }
		}
		if err := c.post(ctx, c.api(n, "preupload", n.Revision), nil, q, &answer); err != nil {
			return err
		}
		for _, f := range part {
			at := slices.IndexFunc(answer.Files, func(a struct{ Path, UploadMode string }) bool { return a.Path == f.path })
			if at < 0 {
				return fmt.Errorf("the Hub says nothing of the file %s", f.path)
			}
			f.large = answer.Files[at].UploadMode == "lfs" && f.size > 0
		}
	}
	return nil
}

// action is where a large file is sent, and how.
type action struct {
	Href   string
	Header map[string]any
}

// object is a large file in the protocol of Git LFS.
type object struct {
	OID     string
	Size    int64
	Actions struct{ Upload, Verify *action }
	Error   *struct {
		Code    int
		Message string
	}
}

// store uploads the large files that the Hub does not have.
func (c *Client) store(ctx context.Context, n hub.Name, files []*upload) error {
	large := slices.DeleteFunc(slices.Clone(files), func(f *upload) bool { return !f.large })
	for _, f := range large {
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(f.file, 0, f.size)); err != nil {
			return err
		}
		f.oid = hex.EncodeToString(h.Sum(nil))
		c.done.expect(f.size)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	at := strings.TrimSuffix(c.page(n), "/") + ".git/info/lfs/objects/batch"
	lfs := map[string]string{"Accept": "application/vnd.git-lfs+json", "Content-Type": "application/vnd.git-lfs+json"}
	for part := range slices.Chunk(large, perRequest) {
		objects := []map[string]any{}
		for _, f := range part {
			objects = append(objects, map[string]any{"oid": f.oid, "size": f.size})
		}
		var answer struct{ Objects []object }
		if err := c.post(ctx, at, lfs, map[string]any{"operation": "upload", "transfers": []string{"basic", "multipart"}, "objects": objects,
			"hash_algo": "sha256", "ref": map[string]string{"name": n.Revision}}, &answer); err != nil {
			return err
		}
		for _, f := range part {
			i := slices.IndexFunc(answer.Objects, func(o object) bool { return o.OID == f.oid })
			if i < 0 {
				return fmt.Errorf("%s: the Hub says nothing of the upload", f.path)
			}
			if err := c.large(ctx, f, answer.Objects[i], lfs); err != nil {
				return fmt.Errorf("%s: %w", f.path, err)
			}
		}
	}
	return nil
}

// large uploads a large file: whole, or in parts if the Hub says so.
func (c *Client) large(ctx context.Context, f *upload, o object, lfs map[string]string) error {
	switch {
	case o.Error != nil:
		return fmt.Errorf("the Hub refuses the upload: %s (%d)", o.Error.Message, o.Error.Code)
	case o.Actions.Upload == nil: // the Hub has it
		c.done.add(f.size)
		return nil
	}
	up := o.Actions.Upload
	text, parts := up.Header["chunk_size"]
	if !parts {
		if _, err := c.put(ctx, up.Href, f, 0, f.size); err != nil {
			return err
		}
	} else if err := c.inParts(ctx, f, up, fmt.Sprint(text), lfs); err != nil {
		return err
	}
	if v := o.Actions.Verify; v != nil {
		return c.post(ctx, v.Href, lfs, map[string]any{"oid": f.oid, "size": f.size}, nil)
	}
	return nil
}

// inParts uploads the parts of a large file to the addresses in the header of an action, and completes the upload.
func (c *Client) inParts(ctx context.Context, f *upload, up *action, size string, lfs map[string]string) error {
	chunk, err := strconv.ParseInt(size, 10, 64)
	if err != nil || chunk < 1 {
		return fmt.Errorf("found parts of %q bytes in an answer of the Hub", size)
	}
	to := map[int]string{}
	for key, value := range up.Header {
		if number, err := strconv.Atoi(key); err == nil {
			to[number] = fmt.Sprint(value)
		}
	}
	if int64(len(to)) != (f.size+chunk-1)/chunk {
		return fmt.Errorf("found addresses for %d parts of %d bytes in an answer of the Hub, for a file of %d", len(to), chunk, f.size)
	}
	type part struct {
		Number int    `json:"partNumber"`
		ETag   string `json:"etag"`
	}
	var parts []part
	for i, number := range slices.Sorted(maps.Keys(to)) {
		from := int64(i) * chunk
		header, err := c.put(ctx, to[number], f, from, min(chunk, f.size-from))
		if err != nil {
			return err
		}
		if header.Get("ETag") == "" {
			return fmt.Errorf("part %d: the storage has sent no ETag", number)
		}
		parts = append(parts, part{i + 1, header.Get("ETag")})
	}
	return c.post(ctx, up.Href, lfs, map[string]any{"oid": f.oid, "parts": parts}, nil)
}

// put sends a piece of a file.
func (c *Client) put(ctx context.Context, to string, f *upload, from, size int64) (header http.Header, err error) {
	var last *counted
	err = c.persist(ctx, maxAttempts, func() (bool, error) {
		ctx, watch := watched(ctx, c.silence(http.MethodPut))
		defer watch.stop()
		body := func() io.Reader {
			last.end()
			last = &counted{from: io.NewSectionReader(f.file, from, size), meter: &c.done, watch: watch}
			return last
		}
		res, err := c.send(ctx, request{method: http.MethodPut, url: to, body: body, size: size})
		if err != nil {
			return false, err
		}
		header = res.Header
		return false, res.Body.Close()
	})
	return header, err
}

// counted is the body of one attempt. It counts the bytes that are read of it, and fails if none is read for too long.
type counted struct {
	from  io.Reader
	meter *meter
	watch *watch

	mu    sync.Mutex
	n     int64
	ended bool
}

func (c *counted) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, io.ErrClosedPipe
	}
	c.watch.timer.Reset(2 * c.watch.idle)
	n, err := c.from.Read(p)
	c.n += int64(n)
	c.meter.add(int64(n))
	return n, err
}

// end takes back what an attempt that failed has counted.
func (c *counted) end() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.meter.add(-c.n)
}

// commit makes the commit: an object with its message, and one for each file, each on a line. It is not repeated after
// a broken connection: the Hub may have made it. old are the paths that it deletes.
func (c *Client) commit(ctx context.Context, n hub.Name, files []*upload, old []string, message string) (string, error) {
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	line := func(key string, value map[string]any) error {
		return lines.Encode(map[string]any{"key": key, "value": value})
	}
	if err := line("header", map[string]any{"summary": message, "description": ""}); err != nil {
		return "", err
	}
	for _, f := range files {
		value := map[string]any{"path": f.path, "algo": "sha256", "oid": f.oid, "size": f.size}
		key := "lfsFile"
		if !f.large {
			content, err := io.ReadAll(io.NewSectionReader(f.file, 0, f.size))
			if err != nil {
				return "", err
			}
			key, value = "file", map[string]any{"path": f.path, "content": base64.StdEncoding.EncodeToString(content), "encoding": "base64"}
		}
		if err := line(key, value); err != nil {
			return "", err
		}
	}
	for _, p := range old {
		if err := line("deletedFile", map[string]any{"path": p}); err != nil {
			return "", err
		}
	}
	var answer struct{ CommitURL, CommitOID string }
	if _, err := c.ask(ctx, request{method: http.MethodPost, url: c.api(n, "commit", n.Revision), once: true, size: int64(body.Len()),
		header: map[string]string{"Content-Type": "application/x-ndjson"}, body: bytesOf(body.Bytes())}, &answer); err != nil {
		return "", fmt.Errorf("the commit: %w", err)
	}
	return cmp.Or(answer.CommitURL, answer.CommitOID), nil
}
