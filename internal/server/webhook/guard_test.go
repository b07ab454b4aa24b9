package webhook

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
)

// private has an address, or both ends, of every range that must not be reached.
var private = []string{
	"0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.100.100.200", "100.127.255.255",
	"127.0.0.1", "127.255.255.255",
	"169.254.0.0", "169.254.169.254", "169.254.255.255", "172.16.0.0", "172.31.255.255", "192.0.0.0", "192.0.0.192",
	"192.0.0.255",
	"192.0.2.1", "192.88.99.1", "192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.1",
	"203.0.113.1",
	"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
	"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
	"64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1",
	"2001::1", "2001:1ff::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "fc00::1", "fd00:ec2::254",
	"fdff::1", "fe80::1", "febf::1", "fec0::1", "feff::1",
	"ff00::1", "ff02::1", "5f00::1",
}

var public = []string{"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
	"126.255.255.255", "128.0.0.1", "172.15.255.255", "172.32.0.0", "192.0.1.1",
	"192.167.255.255", "198.17.255.255", "198.20.0.0", "223.255.255.255", "::ffff:8.8.8.8", "2606:4700:4700::1111",
	"2a00:1450::1"}

func literal(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	var g Guard
	for _, addr := range private {
		err := g.CheckURL(t.Context(), "https://"+literal(addr)+"/hook")
		if perdure.CodeOf(err) != perdure.CodeURLRefused {
			t.Errorf("saving %s: %v, want %s", addr, err, perdure.CodeURLRefused)
		}
		for _, network := range []string{"tcp4", "tcp6"} {
			if g.control("https")(network, literal(addr)+":443", nil) == nil {
				t.Errorf("dialling %s over %s is allowed, want it refused", addr, network)
			}
		}
	}
	for _, addr := range public {
		if err := g.CheckURL(t.Context(), "https://"+literal(addr)+"/hook"); err != nil {
			t.Errorf("saving %s: %v, want it allowed", addr, err)
		}
		if err := g.control("https")("tcp4", literal(addr)+":443", nil); err != nil {
			t.Errorf("dialling %s: %v, want it allowed", addr, err)
		}
		if g.control("http")("tcp4", literal(addr)+":80", nil) == nil {
			t.Errorf("dialling %s by http is allowed, want it refused", addr)
		}
	}
	for _, zone := range []string{"fe80::1%eth0", "2606:4700:4700::1111%eth0"} {
		if g.control("https")("tcp6", "["+zone+"]:443", nil) == nil {
			t.Errorf("dialling %s is allowed, want it refused", zone)
		}
	}
	if g.control("https")("udp4", "1.1.1.1:443", nil) == nil ||
		g.control("https")("unix", "/run/docker.sock", nil) == nil {
		t.Error("dialling something else than TCP is allowed, want it refused")
	}
}

func TestAllowedNetworkCanBeReachedByHTTP(t *testing.T) {
	g := Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fd00:1::/32"),
		netip.MustParsePrefix("10.1.0.0/16")}}
	for _, ok := range []string{"http://127.0.0.1:8080/hook", "https://127.0.0.1/", "http://[::ffff:127.0.0.1]/",
		"http://[fd00:1::5]:80/x", "https://10.1.2.3/", "http://10.1.2.3"} {
		if err := g.CheckURL(t.Context(), ok); err != nil {
			t.Errorf("CheckURL(%s) = %v, want it allowed", ok, err)
		}
	}
	for _, bad := range []string{"http://10.2.0.1/", "https://10.2.0.1/", "http://8.8.8.8/", "http://[::1]/",
		"https://[fd00:2::5]/", "http://169.254.169.254/latest/meta-data"} {
		if err := g.CheckURL(t.Context(), bad); perdure.CodeOf(err) != perdure.CodeURLRefused {
			t.Errorf("CheckURL(%s) = %v, want %s", bad, err, perdure.CodeURLRefused)
		}
	}
}

func TestAmbiguousURLsAreInvalid(t *testing.T) {
	g := Guard{Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	for _, bad := range []string{
		"", " ", "hook", "/hook", "//example.com/hook", "https:", "https://", "https:///hook", "https:example.com",
		"https:/example.com", "example.com/hook", "ftp://example.com/", "file:///etc/passwd",
		"gopher://example.com/", "HTTPS//example.com", "javascript:alert(1)", "unix:///run/docker.sock",
		"https://user@example.com/", "https://user:password@example.com/", "https://:@example.com/",
		"https://@example.com/", "https://example.com@127.0.0.1/",
		"https://example.com/#here", "https://example.com/#", "https://example.com:0/", "https://example.com:65536/",
		"https://example.com:-1/", "https://example.com:443x/", "https://example.com:/",
		"https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0X7F.0.0.1/", "https://0177.0.0.1/",
		"https://127.1/", "https://127.0.1/", "https://127.0.0.1./", "https://0/", "https://1.2.3.4.5/",
		"https://127.0.0.01/", "https://0x/", "https://256.256.256.256/", "https://example.com./",
		"https://localhost./", "https://.example.com/", "https://example..com/", "https://-example.com/",
		"https://example-.com/",
		"https://[fe80::1%25eth0]/", "https://[::1%25lo]/", "https://[127.0.0.1]/", "https://[example.com]/",
		"https://[::1/", "https://::1/", "https://[::ffff:0x7f.1]/", "https://[v1.x]/",
		"https://１２７.0.0.1/", "https://127。0。0。1/", "https://ⓛocalhost/", "https://münchen.example/",
		"https://example.com%2f@127.0.0.1/", "https://%31%32%37.0.0.1/", "https://exa%6dple.com/",
		"https://example.com%00.evil/",
		"https://exa mple.com/", "https://example.com/a b", "https://example.com/\n",
		"https://example.com\\@127.0.0.1/", "https://example.com/\x00", "https://example.com/\t",
		"\thttps://example.com/", "https://example.com/ü", "https://a,b/", "https://a;b/", "https://a*b/",
		"https://" + strings.Repeat("a", 64) + ".com/", "https://" + strings.Repeat("a.", 130) + "com/",
		"https://example.com/" + strings.Repeat("a", perdure.MaxURL),
	} {
		if err := g.CheckURL(t.Context(), bad); perdure.CodeOf(err) != perdure.CodeInvalid {
			t.Errorf("CheckURL(%q) = %v, want %s", bad, err, perdure.CodeInvalid)
		}
	}
}

func TestNameOfPrivateAddressIsRefused(t *testing.T) {
	var g Guard
	for _, name := range []string{"https://localhost/", "https://LOCALHOST:8443/hook"} {
		if err := g.CheckURL(t.Context(), name); perdure.CodeOf(err) != perdure.CodeURLRefused {
			t.Errorf("CheckURL(%s) = %v, want %s", name, err, perdure.CodeURLRefused)
		}
	}
	loopback := Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}
	if err := loopback.CheckURL(t.Context(), "http://localhost:8080/hook"); err != nil {
		t.Errorf("localhost in an allowed network: %v", err)
	}

	var answer atomic.Pointer[netip.Addr]
	g.Resolver = nameserver(t, &answer)
	if err := g.CheckURL(t.Context(), "https://unknown.example/"); err != nil {
		t.Errorf("an unknown name by https: %v, want it allowed", err)
	}
	if err := g.CheckURL(t.Context(), "http://unknown.example/"); perdure.CodeOf(err) != perdure.CodeURLRefused {
		t.Errorf("an unknown name by http: %v, want %s", err, perdure.CodeURLRefused)
	}
	for _, addr := range []string{"8.8.8.8", "10.0.0.7"} {
		ip := netip.MustParseAddr(addr)
		answer.Store(&ip)
		err := g.CheckURL(t.Context(), "https://hooks.example/")
		if ip.IsPrivate() != (perdure.CodeOf(err) == perdure.CodeURLRefused) {
			t.Errorf("a name of %s: %v, want only private addresses refused", addr, err)
		}
		if err != nil && strings.Contains(err.Error(), addr) {
			t.Errorf("the error contains the resolved address: %v", err)
		}
	}
}

// nameserver starts a DNS server on loopback. It answers every question for an IPv4 address with
// the same one, and with "no such name" while there is none.
func nameserver(t *testing.T, answer *atomic.Pointer[netip.Addr]) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			end := 12 // the question: labels, then type and class
			for end < n && b[end] != 0 {
				end += int(b[end]) + 1
			}
			end += 5
			if end > n {
				continue
			}
			reply := append([]byte{}, b[:end]...)
			copy(reply[2:12], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
			if ip := answer.Load(); ip == nil {
				reply[3] = 0x83
			} else if binary.BigEndian.Uint16(b[end-4:]) == 1 {
				reply[7] = 1
				reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				reply = append(reply, ip.AsSlice()...)
			}
			conn.WriteTo(reply, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func TestOnlyListedPortsAreAllowed(t *testing.T) {
	for _, c := range []struct {
		ports []int
		allow string
		url   string
		ok    bool
	}{
		{nil, "", "https://8.8.8.8/", true}, {nil, "", "https://8.8.8.8:443/", true},
		{nil, "", "https://8.8.8.8:80/", true}, {nil, "", "https://8.8.8.8:8080/", true},
		{nil, "", "https://[2606:4700:4700::1111]:8443/", true},
		{nil, "", "https://8.8.8.8:22/", false}, {nil, "", "https://8.8.8.8:25/", false},
		{nil, "", "https://8.8.8.8:6379/", false}, {nil, "", "https://[2606:4700:4700::1111]:444/", false},
		{nil, "", "https://no-such-name.invalid:25/", false}, {nil, "", "https://no-such-name.invalid:8443/", true},
		{nil, "10.1.0.0/16", "http://10.1.2.3:6379/", true}, {nil, "10.1.0.0/16", "https://8.8.8.8:6379/", false},
		{[]int{9443}, "", "https://8.8.8.8:9443/", true}, {[]int{9443}, "", "https://8.8.8.8/", false},
		{[]int{}, "10.1.0.0/16", "https://8.8.8.8/", false},
	} {
		g := Guard{Ports: c.ports, Resolver: nowhere}
		if c.allow != "" {
			g.Allow = []netip.Prefix{netip.MustParsePrefix(c.allow)}
		}
		err := g.CheckURL(t.Context(), c.url)
		named := err == nil || perdure.CodeOf(err) == perdure.CodeURLRefused &&
			strings.Contains(err.Error(), "webhook_ports")
		if (err == nil) != c.ok || !named {
			t.Errorf("saving %s with ports %v: %v, want allowed: %t", c.url, c.ports, err, c.ok)
		}
		u, err := g.parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := netip.ParseAddr(u.Hostname()); err != nil {
			continue // a name is resolved before it is dialled
		}
		address := net.JoinHostPort(u.Hostname(), strconv.Itoa(portOf(u)))
		if err := g.control(u.Scheme)("tcp4", address, nil); (err == nil) != c.ok {
			t.Errorf("dialling %s with ports %v: %v, want allowed: %t", c.url, c.ports, err, c.ok)
		}
	}
}

// nowhere is a resolver without a name server.
var nowhere = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	return nil, net.UnknownNetworkError("none")
}}
