package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/redact"
)

// A Guard prevents server-side request forgery: that the server is used to reach its own machine,
// its network or a cloud's metadata service. URLs are checked when they are saved, so that the
// caller gets an error. The address is checked again when it is dialled, because a name may resolve
// to another one by then.
//
// The zero value allows the public internet by https, on DefaultPorts, and nothing else. It is safe
// for concurrent use.
type Guard struct {
	// Allow lists networks that may be reached although they are not public. There, http and every
	// port are allowed as well.
	Allow []netip.Prefix

	// Ports lists the ports that may be reached elsewhere. Nil means DefaultPorts.
	Ports []int

	// Resolver resolves names. Nil means the system's resolver.
	Resolver *net.Resolver
}

// DefaultPorts are the usual ports of web servers. Services on other ports may misread a request.
var DefaultPorts = []int{80, 443, 8080, 8443}

// lookup limits the resolution of a name when a URL is saved.
const lookup = 2 * time.Second

// besides lists public addresses that belong to the machine: Azure's virtual host.
var besides = []netip.Prefix{netip.MustParsePrefix("168.63.129.16/32")}

// errDenied refuses an address without naming it. That a name resolves to a private address is
// still disclosed to the webhook's owner.
var errDenied = errors.New("the address is not public")

// errPort refuses a port that is not on the list.
var errPort = errors.New("the port is not one that webhooks may use")

// CheckURL checks whether messages may be sent to a URL. The code is invalid for an unusable URL,
// and url_refused for an address that is not allowed. An https name that cannot be resolved now is
// accepted, because it is checked again whenever it is dialled.
func (g *Guard) CheckURL(ctx context.Context, raw string) error {
	u, err := g.parse(raw)
	if err != nil {
		return err
	}
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); err == nil {
		return g.judge(u, ip, "%s is not public")
	}
	ctx, cancel := context.WithTimeout(ctx, lookup)
	defer cancel()
	ips, err := g.resolver().LookupNetIP(ctx, "ip", host)
	if err != nil {
		if u.Scheme == "http" {
			return refused(u.Scheme, "%s can't be looked up", host)
		}
		if !g.onList(portOf(u)) && len(g.Allow) == 0 { // not allowed at any address
			return g.portRefused(u)
		}
		return nil
	}
	for _, ip := range ips {
		if err := g.judge(u, ip, "%s leads to an address that is not public"); err != nil {
			return err
		}
	}
	return nil
}

// judge checks one address of a URL, with its scheme and port.
func (g *Guard) judge(u *url.URL, ip netip.Addr, format string) error {
	switch err := g.check(u.Scheme, netip.AddrPortFrom(ip, uint16(portOf(u)))); {
	case errors.Is(err, errPort):
		return g.portRefused(u)
	case err != nil:
		return refused(u.Scheme, format, u.Hostname())
	}
	return nil
}

// portRefused returns the error for a port, which names the setting.
func (g *Guard) portRefused(u *url.URL) error {
	var list []string
	for _, p := range g.ports() {
		list = append(list, strconv.Itoa(p))
	}
	return perdure.Errorf(perdure.CodeURLRefused, "port %d is none of those that webhooks may use (%s); "+
		"the operator may allow it with webhook_ports", portOf(u), strings.Join(list, ", "))
}

func (g *Guard) ports() []int {
	if g.Ports != nil {
		return g.Ports
	}
	return DefaultPorts
}

func (g *Guard) onList(port int) bool { return slices.Contains(g.ports(), port) }

// portOf returns the port of a URL that parse has checked.
func portOf(u *url.URL) int {
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	if u.Scheme == "http" {
		return 80
	}
	return 443
}

func refused(scheme, format string, args ...any) *perdure.Error {
	if scheme == "http" {
		return perdure.Errorf(perdure.CodeURLRefused,
			"has to begin with https://: http is for networks that the operator has allowed")
	}
	return perdure.Errorf(perdure.CodeURLRefused, format+"; the operator may allow its network", args...)
}

func (g *Guard) resolver() *net.Resolver {
	if g.Resolver != nil {
		return g.Resolver
	}
	return net.DefaultResolver
}

var (
	isLabel = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

	// isNumber matches what some parsers read as the last part of an IPv4 address: 2130706433,
	// 0x7f.1.
	isNumber = regexp.MustCompile(`^([0-9]+|0[xX][0-9A-Fa-f]*)$`)
)

// parse parses a URL without resolving its name. It refuses anything that two parsers could read as
// different hosts.
func (g *Guard) parse(raw string) (*url.URL, error) {
	if len(raw) > perdure.MaxURL {
		return nil, perdure.Errorf(perdure.CodeInvalid, "has more than %d bytes", perdure.MaxURL)
	}
	for _, r := range raw {
		if r <= ' ' || r > '~' || r == '\\' {
			return nil, perdure.Errorf(perdure.CodeInvalid, "has a blank, a backslash, a control character "+
				"or one beyond ASCII: escape it, and write a name in its xn-- form")
		}
	}
	if strings.Contains(raw, redact.Mark) {
		return nil, perdure.Errorf(perdure.CodeInvalid,
			"has a secret in it, which is not stored: let the receiver check the signature instead")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Host == "" {
		return nil, perdure.Errorf(perdure.CodeInvalid, "is no URL such as https://example.com/hook")
	}
	host := u.Hostname()
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, perdure.Errorf(perdure.CodeInvalid, "has to begin with https://")
	case u.User != nil:
		return nil, perdure.Errorf(perdure.CodeInvalid, "has a user name in it: messages are signed instead")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return nil, perdure.Errorf(perdure.CodeInvalid, "has a fragment, which is not sent")
	case strings.HasSuffix(u.Host, ":") || u.Port() != "" && !isPort(u.Port()):
		return nil, perdure.Errorf(perdure.CodeInvalid, "has a port that is none of 1 to 65535")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return nil, perdure.Errorf(perdure.CodeInvalid, "has an address with a zone")
		}
		return u, nil
	}
	labels := strings.Split(host, ".")
	for _, l := range labels {
		if !isLabel.MatchString(l) || len(host) > 253 {
			return nil, perdure.Errorf(perdure.CodeInvalid, "has a host that is neither a name nor an IP address")
		}
	}
	if isNumber.MatchString(labels[len(labels)-1]) {
		return nil, perdure.Errorf(perdure.CodeInvalid,
			"has an IP address that is not written in full, such as 192.0.2.1")
	}
	return u, nil
}

func isPort(text string) bool {
	var n int
	_, err := fmt.Sscanf(text, "%d", &n)
	return err == nil && n >= 1 && n <= 65535
}

// check tells whether an address may be reached with a scheme. http and ports that are not on the
// list are only allowed in the networks of Allow.
func (g *Guard) check(scheme string, to netip.AddrPort) error {
	ip := to.Addr().Unmap()
	for _, p := range g.Allow {
		if p.Contains(ip) {
			return nil
		}
	}
	if scheme != "https" || guardian.SafeAddr(ip) != nil {
		return errDenied
	}
	if !g.onList(int(to.Port())) {
		return errPort
	}
	return nil
}

// guardian knows the networks that are not public.
var guardian = ssrf.New(ssrf.WithAnyPort(), ssrf.WithDeniedV4Prefixes(besides...))

// control returns a function that a dialer calls with every address before it connects.
func (g *Guard) control(scheme string) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return errDenied
		}
		return g.check(scheme, to)
	}
}
