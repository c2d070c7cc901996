package coordinator

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/tab"
)

// BrowserOptions describe the page that makes browser tabs members.
type BrowserOptions struct {
	Address     string           // host:port; localhost without a certificate
	Certificate *tls.Certificate // nil: plain HTTP
	Files       fs.FS            // nil: those that the program contains
}

// serveBrowser opens the server of the page.
func (h *Host) serveBrowser() error {
	o := h.options.Browser
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return fmt.Errorf("page for browsers: %w", err)
	}
	h.services.tabs, err = tab.Serve(l, tab.Options{Certificate: o.Certificate, Files: o.Files, Join: h.services.join.Attach,
		Coordinator: h.near(h.services.node.Port()), Left: h.tabLeft, Note: h.options.Note})
	if err != nil {
		return fmt.Errorf("page for browsers: %w", err)
	}
	return nil
}

// Page returns the URL of the page for browsers under a name of this machine; with "", under localhost. A tab also
// needs the token, after "#". Without a page the URL is empty.
func (h *Host) Page(host string) string {
	if h.services.tabs == nil {
		return ""
	}
	return h.services.tabs.URL(host)
}

// tabLeft gives a tab up whose page is closed.
func (h *Host) tabLeft(secret string) {
	hash := protocol.TabHash(secret)
	id := ""
	for member, info := range h.roster.infos() {
		if info.Tab == hash {
			id = member
		}
	}
	if id != "" {
		_ = h.services.control.Drop(id, "its tab is closed") // it may be gone already
	}
}

// peersOf returns the peers as a member reaches them: a tab through the proxy of its page. Of two tabs the one with the
// greater ID connects to the other.
func (h *Host) peersOf(epoch uint64, member string, all []protocol.Peer) []protocol.Peer {
	peers := slices.Clone(all)
	targets, ok := h.targetsOf(member, all)
	if !ok {
		return all
	}
	paths := h.services.tabs.Tickets(epoch, targets)
	for i, p := range peers {
		if path, ok := paths[p.ID]; ok {
			peers[i].Addresses = []string{path}
		}
	}
	return peers
}

// targetsOf returns what the proxy needs to connect a tab to its peers. It reports whether the member is a tab.
func (h *Host) targetsOf(member string, all []protocol.Peer) (map[string]tab.Target, bool) {
	infos := h.roster.infos()
	if h.services.tabs == nil || infos[member].Tab == "" {
		return nil, false
	}
	targets := map[string]tab.Target{}
	for _, p := range all {
		other := infos[p.ID]
		switch {
		case len(p.Addresses) > 0:
			targets[p.ID] = tab.Target{Addresses: p.Addresses}
		case other.Tab != "" && member > p.ID:
			targets[p.ID] = tab.Target{Tab: other.Tab}
		}
	}
	return targets, true
}
