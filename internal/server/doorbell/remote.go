package doorbell

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Options of a bell. The zero value is a bell within the process.
type Options struct {
	// URL is nats://… (several are separated by commas) or postgres://…. Empty or "none" means
	// within the process.
	URL string
	// Space is a secret that the nodes of an installation share. Rings can be forged with it.
	Space  string
	Logger *slog.Logger
	// Admit refuses a connection to PostgreSQL, and Current tells whether one is still to be used.
	// They keep the bell at the primary that the store uses. Nil: any primary will do.
	Admit   pgconn.ValidateConnectFunc
	Current func(*pgconn.PgConn) bool
}

// Open makes the bell for an address. It does not connect; Run does.
func Open(opt Options) (Bell, error) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	switch scheme(opt.URL) {
	case "", "none":
		return &Local{}, nil
	case "postgres", "postgresql":
		return newPostgres(opt)
	default:
		return newNATS(opt), nil
	}
}

// Validate refuses an invalid address. Its error contains no password.
func (o Options) Validate() error {
	switch scheme(o.URL) {
	case "none":
		if o.URL != "none" {
			break
		}
		fallthrough
	case "":
		return nil
	case "postgres", "postgresql":
		_, err := pgConfig(o.URL)
		return err
	case "nats", "tls", "ws", "wss":
		for _, one := range strings.Split(o.URL, ",") {
			u, err := url.Parse(strings.TrimSpace(one))
			if err != nil || u.Host == "" {
				return fmt.Errorf("%s is not an address such as nats://host:4222", Mask(o.URL))
			}
		}
		return nil
	}
	return fmt.Errorf("%s is no address that begins with nats://, tls://, ws://, wss:// or postgres://", Mask(o.URL))
}

// scheme returns the part of an address before "://".
func scheme(address string) string {
	s, _, _ := strings.Cut(address, "://")
	return s
}

// masked replaces a secret.
const masked = "xxxxx"

// Mask returns an address, or several of NATS separated by commas, without its secrets, for logs
// and people. Of an invalid address it hides too much rather than too little.
func Mask(address string) string {
	pg := strings.HasPrefix(address, "postgres")
	parts := []string{address}
	if !pg {
		parts = strings.Split(address, ",")
	}
	for i, one := range parts {
		scheme, rest, ok := strings.Cut(one, "://")
		main, query, _ := strings.Cut(rest, "?")
		at := strings.LastIndexByte(main, '@')
		switch {
		case !ok && len(parts) == 1 && !strings.ContainsAny(one, "@=:"): // a path, or a word
			continue
		case !ok, at < 0 && strings.Contains(query, "@"):
			return masked
		}
		if at >= 0 {
			user, _, ok := strings.Cut(main[:at], ":")
			if ok {
				user += ":" + masked
			} else if !pg {
				user = masked // a user without a password is a token in NATS
			}
			main = user + main[at:]
		}
		if query != "" {
			pairs := strings.Split(query, "&")
			for j, p := range pairs {
				name, _, _ := strings.Cut(p, "=")
				if l := strings.ToLower(name); strings.Contains(l, "password") || strings.Contains(l, "token") {
					pairs[j] = name + "=" + masked
				}
			}
			main += "?" + strings.Join(pairs, "&")
		}
		parts[i] = scheme + "://" + main
	}
	return strings.Join(parts, ",")
}

// A remote is the common part of the bells between nodes: the local listeners and the outbox.
type remote struct {
	opt  Options
	node uint64 // random id of this node, to recognize its own messages
	name string // hash of the space, used in subjects and channels
	counters
	local Local
	out   outbox
	last  message // the message being read
}

func (r *remote) init(opt Options) {
	var b [8]byte
	rand.Read(b[:])
	sum := sha256.Sum256([]byte("doorbell " + opt.Space))
	r.opt, r.node, r.name = opt, binary.BigEndian.Uint64(b[:]), hex.EncodeToString(sum[:8])
	r.local.space = opt.Space
}

// Listen implements Bell.
func (r *remote) Listen(topics ...Topic) (<-chan struct{}, func()) { return r.local.Listen(topics...) }

// receive handles a message. It returns false if the message is invalid or from this node.
func (r *remote) receive(b []byte) bool {
	if err := r.last.decode(b); err != nil {
		r.invalid.Add(1)
		return false
	}
	if r.last.node == r.node {
		return false
	}
	r.received.Add(1)
	if r.last.flags&flagAll != 0 {
		r.local.wakeAll()
	}
	for _, x := range r.last.rings {
		r.local.wake(x)
	}
	return true
}

// batch encodes rings into as few messages as possible, each of at most limit bytes.
func (r *remote) batch(rings map[key]ring, flags byte, limit int) (out [][]byte) {
	b := appendHeader(nil, flags, r.node)
	full := flags != 0
	for _, x := range rings {
		if len(b)+wireRing > limit {
			out = append(out, b)
			b = appendHeader(nil, 0, r.node)
		}
		b, full = appendRing(b, x), true
	}
	if full {
		out = append(out, b)
	}
	return out
}

const (
	// sendPause is the least time between two sends. Rings within it go into one batch. The first
	// ring after a pause is sent at once.
	sendPause = time.Millisecond

	// stepTimeout limits one request to the medium.
	stepTimeout = 5 * time.Second
)

// pause returns the backoff before the n-th attempt to connect.
func pause(n int) time.Duration {
	d := 50 * time.Millisecond << min(n, 6)
	return d/2 + mrand.N(d/2)
}
