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
	"github.com/perdure/perdure/internal/redact"
)

// A Guard keeps the server from being used to reach what only it can reach: its own machine, its network, a cloud's
// metadata service. Addresses are checked when they are saved, so that who saves one learns why not, and again when
// a connection is made, on the address that is really dialled: what a name resolves to may change in between.
//
// The zero value allows the public internet by https, on DefaultPorts, and nothing else. It is safe for concurrent use.
type Guard struct {
	// Allow are networks that may be reached although they are not public. Into these, http is allowed as well, and every port.
	Allow []netip.Prefix

	// Ports are those that may be reached elsewhere. Nil means DefaultPorts.
	Ports []int

	// Resolver looks names up; nil: the system's.
	Resolver *net.Resolver
}

// DefaultPorts are what web servers listen on. Other ports have services behind them that may take a request for something else.
var DefaultPorts = []int{80, 443, 8080, 8443}

// lookup bounds the look at a name when an address is saved.
const lookup = 2 * time.Second

// besides is what has a public address and belongs to the machine all the same: Azure's virtual host.
var besides = []netip.Prefix{netip.MustParsePrefix("168.63.129.16/32")}

// errDenied is what an address is refused with. It names none. That a name leads to one that is not public is said all the
// same, when it is saved and in its attempts: so much of what the server's resolver knows its owner can find out.
var errDenied = errors.New("the address is not public")

// errPort is what a connection to a port is refused with that is not on the list.
var errPort = errors.New("the port is not one that webhooks may use")

// CheckURL tells whether messages may be sent to an address: code invalid for what is no usable URL, url_refused for what
// leads where the server does not send. A name that can't be looked up now is let pass: it is checked again whenever it is dialled.
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
		if !g.onList(portOf(u)) && len(g.Allow) == 0 { // wherever it leads
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

// judge refuses a URL that leads to an address which may not be reached by its scheme, or not on its port.
func (g *Guard) judge(u *url.URL, ip netip.Addr, format string) error {
	switch err := g.check(u.Scheme, netip.AddrPortFrom(ip, uint16(portOf(u)))); {
	case errors.Is(err, errPort):
		return g.portRefused(u)
	case err != nil:
		return refused(u.Scheme, format, u.Hostname())
	}
	return nil
}

// portRefused says which port it is about, and which setting.
func (g *Guard) portRefused(u *url.URL) error {
	var list []string
	for _, p := range g.ports() {
		list = append(list, strconv.Itoa(p))
	}
	return perdure.Errorf(perdure.CodeURLRefused, "port %d is none of those that webhooks may use (%s); the operator may allow it with webhook_ports", portOf(u), strings.Join(list, ", "))
}

func (g *Guard) ports() []int {
	if g.Ports != nil {
		return g.Ports
	}
	return DefaultPorts
}

func (g *Guard) onList(port int) bool { return slices.Contains(g.ports(), port) }

// portOf gives the port that a URL leads to. parse has checked what it says.
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
		return perdure.Errorf(perdure.CodeURLRefused, "has to begin with https://: http is for networks that the operator has allowed")
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

	// isNumber finds what some parsers take for the last part of an IPv4 address: 2130706433, 0x7f.1, 0177.0.0.1.
	isNumber = regexp.MustCompile(`^([0-9]+|0[xX][0-9A-Fa-f]*)$`)
)

// parse reads an address as far as that goes without looking anything up. Whatever two parsers could take for two
// different hosts is refused.
func (g *Guard) parse(raw string) (*url.URL, error) {
	if len(raw) > perdure.MaxURL {
		return nil, perdure.Errorf(perdure.CodeInvalid, "has more than %d bytes", perdure.MaxURL)
	}
	for _, r := range raw {
		if r <= ' ' || r > '~' || r == '\\' {
			return nil, perdure.Errorf(perdure.CodeInvalid, "has a blank, a backslash, a control character or one beyond ASCII: escape it, and write a name in its xn-- form")
		}
	}
	if strings.Contains(raw, redact.Mark) {
		return nil, perdure.Errorf(perdure.CodeInvalid, "has a secret in it, which is not stored: let the receiver check the signature instead")
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
		return nil, perdure.Errorf(perdure.CodeInvalid, "has an IP address that is not written in full, such as 192.0.2.1")
	}
	return u, nil
}

func isPort(text string) bool {
	var n int
	_, err := fmt.Sscanf(text, "%d", &n)
	return err == nil && n >= 1 && n <= 65535
}

// check tells whether an address may be reached by a scheme. http, and ports that are not on the list, only go where the operator has
// said so.
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

// guardian knows what is not public.
var guardian = ssrf.New(ssrf.WithAnyPort(), ssrf.WithDeniedV4Prefixes(besides...))

// control is asked by a dialer for every address that it is about to connect to.
func (g *Guard) control(scheme string) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return errDenied
		}
		return g.check(scheme, to)
	}
}
