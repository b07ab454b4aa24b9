package doorbell

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Options of a bell. The zero value is one within the process.
type Options struct {
	URL    string // nats://… (several separated by commas), postgres://…; empty or "none": within the process
	Space  string // the nodes that hear one another have the same; whoever knows it can forge rings
	Logger *slog.Logger
}

// Open makes the bell that an address names. It connects to nothing: Run does.
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

// Validate refuses an address that is none. What it says holds no password.
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

// scheme is what an address begins with.
func scheme(address string) string {
	s, _, _ := strings.Cut(address, "://")
	return s
}

// masked stands in the place of a secret.
const masked = "xxxxx"

// Mask gives an address, or several of NATS separated by commas, without its secrets, for logs and people.
// It reads what is no good address too, and then rather hides too much.
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
				user = masked // NATS takes a name alone for a token
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

// A remote is what the bells between nodes have in common: listeners here, and a box for what goes out.
type remote struct {
	opt  Options
	node uint64 // who this is, for messages that come back to their sender
	name string // of the space, in subjects and channels
	counters
	local Local
	out   outbox
	last  message // the one being read
}

func (r *remote) init(opt Options) {
	var b [8]byte
	rand.Read(b[:])
	sum := sha256.Sum256([]byte("doorbell " + opt.Space))
	r.opt, r.node, r.name = opt, binary.BigEndian.Uint64(b[:]), hex.EncodeToString(sum[:8])
	r.local.space = opt.Space
}

// Listen listens.
func (r *remote) Listen(topics ...Topic) (<-chan struct{}, func()) { return r.local.Listen(topics...) }

// hear does what a message of another node asks for. It tells whether it was one.
func (r *remote) hear(b []byte) bool {
	if err := r.last.decode(b); err != nil {
		r.nonsense.Add(1)
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

// batch writes rings into as few messages of at most so many bytes as it takes.
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
	// breath is the least time between two sends: what rings meanwhile goes along with the next. The first
	// ring after a silence waits for nothing.
	breath = time.Millisecond

	patience = 5 * time.Second // with one step of a conversation
)

// pause is how long to wait before the nth attempt to connect.
func pause(n int) time.Duration {
	d := 50 * time.Millisecond << min(n, 6)
	return d/2 + mrand.N(d/2)
}

// sleep waits, or tells that it is over.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// An outage is logged once when it begins and once when it ends.
type outage struct {
	mu   sync.Mutex
	down bool
}

func (o *outage) begins(log *slog.Logger, address string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down {
		log.Warn("the doorbell is away: other nodes are not heard, and what they do is found by looking", "doorbell", Mask(address), "error", err)
	}
	o.down = true
}

func (o *outage) ends(log *slog.Logger, address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		log.Info("the doorbell is there", "doorbell", Mask(address))
	}
	o.down = false
}
