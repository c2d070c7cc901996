package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// certificate writes a certificate for example.com and 192.0.2.7, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"example.com"},
		IPAddresses: []net.IP{net.IPv4(192, 0, 2, 7)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret)
}

func TestBrowserFlags(t *testing.T) {
	o, err := browserFlags{}.browser(":7433")
	require.NoError(t, err)
	assert.Nil(t, o)
	for listen, want := range map[string]string{":7433": "localhost:7437", "192.0.2.7:9000": "localhost:9004", ":0": "localhost:0"} {
		o, err := browserFlags{Browser: true}.browser(listen)
		require.NoError(t, err)
		assert.Equal(t, want, o.Address)
		assert.Nil(t, o.Certificate)
		assert.Equal(t, []string{""}, browserFlags{}.names(o), "localhost")
	}
	cert, key := certificate(t)
	o, err = browserFlags{Browser: true, BrowserCert: cert, BrowserKey: key}.browser(":7433")
	require.NoError(t, err)
	assert.Equal(t, ":7437", o.Address)
	assert.Equal(t, []string{"example.com", "192.0.2.7"}, browserFlags{}.names(o))
	assert.Equal(t, []string{"a"}, browserFlags{BrowserHost: []string{"a"}}.names(o))
	for want, f := range map[string]browserFlags{
		"add --browser":            {BrowserCert: cert, BrowserKey: key},
		"found one, expected both": {Browser: true, BrowserKey: key},
		"--browser-cert " + key:    {Browser: true, BrowserCert: key, BrowserKey: cert},
	} {
		_, err := f.browser(":7433")
		assert.ErrorContains(t, err, want)
	}
	_, err = browserFlags{Browser: true}.browser(":65533")
	assert.ErrorContains(t, err, "expected 0 to 65531")
}
