package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

const (
	fileFormat  = "gpupipe-cluster-1"
	maxFileSize = 1 << 20
)

// authorityFile is the file in which a coordinator keeps its CA from one start to the next.
type authorityFile struct {
	Format      string      `json:"format"`
	Run         string      `json:"run"`
	Key         string      `json:"ca_key"`         // PEM, PKCS #8
	Certificate string      `json:"ca_certificate"` // PEM
	Tokens      []tokenFile `json:"tokens,omitempty"`
	Expelled    []string    `json:"expelled,omitempty"`
}

type tokenFile struct {
	Hash      string    `json:"sha256"` // of the secret
	Addresses []string  `json:"addresses,omitempty"`
	Expires   time.Time `json:"expires"`
	SingleUse bool      `json:"single_use,omitempty"`
	Used      int       `json:"used,omitempty"`
	Revoked   bool      `json:"revoked,omitempty"`
}

// OpenAuthority loads the CA of a run from a file that only its owner may read, or makes it and the file. A coordinator
// that restarts keeps its run ID, tokens and members this way.
func OpenAuthority(path string) (*Authority, error) {
	a, err := ReadAuthority(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if a, err = NewAuthority(); err != nil {
		return nil, err
	}
	a.path = path
	return a, a.save()
}

// ReadAuthority loads the CA of a run from its file. Several processes may have one authority: each takes over what the
// others have changed, at the latest when it calls [Authority.Refresh].
func ReadAuthority(path string) (*Authority, error) {
	text, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	a, err := decodeAuthority(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a.path = path
	return a, nil
}

func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s: found mode %04o, expected 0600: others may have read the key of the run's CA; remove the file and start a new run, or run chmod 600 if they have not", path, mode)
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s: found %d bytes, expected at most %d", path, info.Size(), maxFileSize)
	}
	return io.ReadAll(io.LimitReader(f, maxFileSize))
}

// save writes the file, if the authority has one, with what other processes have added to it. The caller holds a.mu or
// the only reference.
func (a *Authority) save() error {
	if a.path == "" {
		return nil
	}
	release, err := lockFolder(filepath.Dir(a.path))
	if err != nil {
		return err
	}
	defer release()
	if err := a.merge(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := a.encode()
	if err != nil {
		return err
	}
	return atomicfile.WritePrivate(a.path, text)
}

func (a *Authority) encode() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	f := authorityFile{Format: fileFormat, Run: a.run, Key: toPEM("PRIVATE KEY", key), Certificate: toPEM("CERTIFICATE", a.certificate.Raw)}
	for _, t := range a.tokens {
		f.Tokens = append(f.Tokens, tokenFile{hex.EncodeToString(t.Hash[:]), t.Addresses, t.Expires, t.SingleUse, t.Used, t.Revoked})
	}
	for member := range a.expelled {
		f.Expelled = append(f.Expelled, member)
	}
	slices.Sort(f.Expelled)
	return json.MarshalIndent(f, "", "  ")
}

// decodeAuthority is the inverse of encode. Its errors do not contain the key.
func decodeAuthority(text []byte) (*Authority, error) {
	var f authorityFile
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return nil, err
	}
	if f.Format != fileFormat {
		return nil, fmt.Errorf("format: found %.40q, expected %q", f.Format, fileFormat)
	}
	if err := checkName("run", f.Run); err != nil {
		return nil, err
	}
	a := &Authority{run: f.Run, now: time.Now, expelled: map[string]bool{}}
	if err := a.decodeKey(f.Key, f.Certificate); err != nil {
		return nil, err
	}
	for i, t := range f.Tokens {
		hash, err := hex.DecodeString(t.Hash)
		if err != nil || len(hash) != sha256.Size {
			return nil, fmt.Errorf("tokens[%d].sha256: expected %d hexadecimal digits", i, 2*sha256.Size)
		}
		sum := [sha256.Size]byte(hash)
		a.tokens = append(a.tokens, issuedToken{TokenState{tokenID(sum), t.Addresses, t.Expires, t.SingleUse, t.Used, t.Revoked}, sum})
	}
	for _, member := range f.Expelled {
		a.expelled[member] = true
	}
	return a, nil
}

func (a *Authority) decodeKey(keyPEM, certificatePEM string) error {
	der, err := fromPEM("PRIVATE KEY", keyPEM)
	if err != nil {
		return fmt.Errorf("ca_key: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return errors.New("ca_key: found no PKCS #8 key")
	}
	var ok bool
	if a.key, ok = key.(ed25519.PrivateKey); !ok {
		return fmt.Errorf("ca_key: found %T, expected Ed25519", key)
	}
	if der, err = fromPEM("CERTIFICATE", certificatePEM); err != nil {
		return fmt.Errorf("ca_certificate: %w", err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("ca_certificate: %w", err)
	}
	if !a.certificate.IsCA || !a.key.Public().(ed25519.PublicKey).Equal(a.certificate.PublicKey) {
		return errors.New("ca_certificate: it is not the certificate of ca_key")
	}
	return nil
}

func toPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func fromPEM(kind, text string) ([]byte, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("expected a PEM block %q", kind)
	}
	return block.Bytes, nil
}
