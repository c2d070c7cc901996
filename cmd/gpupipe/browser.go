package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
)

// browserFlags describe the page that makes browser tabs members.
type browserFlags struct {
	Browser       bool     `help:"Serve a page that makes a browser tab a member, with the GPU of its computer."`
	BrowserListen string   `help:"Address and port of the page. Default: localhost, with --browser-cert all networks, at the fourth port after that of --listen." placeholder:"HOST:PORT"`
	BrowserCert   string   `help:"PEM file with the certificate of the page and its chain. Without one, only this computer's browsers can use the page." type:"path" placeholder:"FILE"`
	BrowserKey    string   `help:"PEM file with the key of --browser-cert." type:"path" placeholder:"FILE"`
	BrowserHost   []string `help:"Name of this computer in the page's URL, repeatable. Default: those of --browser-cert." placeholder:"HOST" sep:"none"`
}

const browserHelp = `--browser serves a page that makes a browser tab a member. Browsers give WebGPU to pages from localhost or https only. Without a
certificate the page is for browsers of this computer, and for others through a tunnel: ssh -L 7437:localhost:7437 THIS-COMPUTER. For a
local network, --browser-cert and --browser-key name a certificate that the browsers trust, for a name of this computer: mkcert makes one,
a company's CA or a public one issues one. The CA of the run cannot: browsers do not accept its Ed25519 signatures, and do not need to. The
tab proves itself to the run as any member does, and its connections are encrypted between the members, inside the page's connection.
`

// pagePortOffset is the distance of the page's port from the port of --listen.
const pagePortOffset = 4

// browser returns the options of the page; nil: there is none.
func (f browserFlags) browser(listen string) (*coordinator.BrowserOptions, error) {
	if !f.Browser {
		if f.BrowserListen+f.BrowserCert+f.BrowserKey != "" || len(f.BrowserHost) > 0 {
			return nil, usererror.Errorf("--browser-listen, --browser-cert, --browser-key and --browser-host describe a page: add --browser")
		}
		return nil, nil
	}
	o := &coordinator.BrowserOptions{Address: f.BrowserListen}
	if (f.BrowserCert == "") != (f.BrowserKey == "") {
		return nil, usererror.Errorf("--browser-cert and --browser-key: found one, expected both")
	}
	if f.BrowserCert != "" {
		pair, err := tls.LoadX509KeyPair(f.BrowserCert, f.BrowserKey)
		if err != nil {
			return nil, usererror.Errorf("--browser-cert %s, --browser-key %s: %w", f.BrowserCert, f.BrowserKey, err)
		}
		o.Certificate = &pair
	}
	if o.Address == "" {
		port, err := pagePort(listen)
		if err != nil {
			return nil, usererror.Errorf("--listen %s: %w", listen, err)
		}
		host := "localhost"
		if o.Certificate != nil {
			host = ""
		}
		o.Address = net.JoinHostPort(host, port)
	}
	return o, nil
}

// pagePort is the page's port beside the ports of --listen. 0 stays 0: any.
func pagePort(listen string) (string, error) {
	_, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port > 65535-pagePortOffset {
		return "", fmt.Errorf("found port %q, expected 0 to %d", text, 65535-pagePortOffset)
	}
	if port > 0 {
		port += pagePortOffset
	}
	return strconv.FormatUint(port, 10), nil
}

// pages lists the URLs of the page. They end with the token unless a file has it.
func (c *hostCommand) pages(h *coordinator.Host, o *coordinator.BrowserOptions) (urls []string) {
	token := h.Token().Reveal()
	if c.TokenFile != "" {
		token = "TOKEN"
	}
	for _, host := range c.names(o) {
		urls = append(urls, h.Page(host)+"#"+token)
	}
	return urls
}

// names lists the names of this computer in the URLs of the page: the names in its certificate unless flags name
// others.
func (f browserFlags) names(o *coordinator.BrowserOptions) []string {
	hosts := f.BrowserHost
	if len(hosts) == 0 && o.Certificate != nil && o.Certificate.Leaf != nil {
		hosts = append(hosts, o.Certificate.Leaf.DNSNames...)
		for _, ip := range o.Certificate.Leaf.IPAddresses {
			hosts = append(hosts, ip.String())
		}
	}
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	return hosts
}

// printPages prints the URLs of the page.
func (c *hostCommand) printPages(a *app, h *coordinator.Host, o *coordinator.BrowserOptions) {
	if o == nil {
		return
	}
	where := ""
	if c.TokenFile != "" {
		where = ", with the token of " + c.TokenFile
	}
	a.printf("In a browser with WebGPU%s:\n\n", where)
	for _, url := range c.pages(h, o) {
		a.printf("  %s\n", url)
	}
	a.printf("\n")
}
