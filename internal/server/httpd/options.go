package httpd

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/sentinel"
	"github.com/perdure/perdure/internal/server/webhook"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Options configures a server. The zero value is usable.
type Options struct {
	// Node is this node's name. It has to be unique among the nodes of a store.
	Node string
	// Hosts are host names that requests may be addressed to, beside IP addresses and localhost.
	Hosts []string
	// Origins are origins of pages that may call the API, such as https://app.example.com.
	Origins []string
	// Streams is the limit of open streams. The default, and the maximum, is three quarters of the
	// file descriptors.
	Streams int
	// StreamsPerTenant is the limit of one tenant's streams. The default is three quarters of
	// Streams while several tenants call.
	StreamsPerTenant int
	// Ready tells whether the node should get traffic. Nil means that it always should.
	Ready func() error
	// Poll is the fallback polling interval, used when no doorbell rings. The default is 1 s.
	Poll time.Duration
	// MaxPollWait bounds a worker's long poll. The default is a minute.
	MaxPollWait time.Duration
	Logger      *slog.Logger
	// Secrets are removed from everything that a request brings.
	Secrets *redact.Set
	// Scratch is the folder in which backups are assembled. The default is the system's temporary
	// folder.
	Scratch string
	// Metrics serves the metrics. Nil means that there are none.
	Metrics http.Handler
	// Rules are the numbers and names of the watchdog's rules, as its log stores them.
	Rules []string
	// StoredRule maps a rule's full name to the name in the watchdog's log, and any other text to
	// itself. Nil means that rules have no full names.
	StoredRule func(name string) string

	// Door returns what serves an escaped path that is not the API's, and the headers that pages of
	// other origins may send and read there, or no handler. Nil means that there are no doors. The path
	// has passed the checks of the API's own that do not depend on a route.
	Door func(path string) (h http.Handler, accepts, exposes string)

	// Processes watches the workspace of this node. Nil means that it has none.
	Processes *sentinel.Monitor

	// Webhooks checks the URLs of webhooks. Nil allows public addresses only.
	Webhooks *webhook.Guard
	// Sender sends test messages. Nil sends them by HTTP, to addresses that Webhooks allows.
	Sender webhook.Sender

	// Tenant has the default limits of a tenant. Zero fields have the defaults of shares.go and
	// stream/limit.go.
	Tenant perdure.TenantLimits
	// Descriptors is the number of files and sockets that the process may open. The default is the
	// limit of the operating system.
	Descriptors int64
	// ShareWait is how long a call waits for its tenant's share before it is refused. The default
	// is 1 s.
	ShareWait time.Duration

	// BodyTimeout bounds the time in which a request's body has to arrive. The default is 30 s.
	BodyTimeout time.Duration
	// AnswerTime and AnswerRate bound the time in which the client has to read an answer:
	// AnswerTime plus one second for each AnswerRate bytes. The defaults are 10 s and 64 KiB.
	AnswerTime time.Duration
	AnswerRate int64
	// Heartbeat is the interval between heartbeats of a stream, by which clients notice a dead
	// connection. The default is 5 s.
	Heartbeat time.Duration
	// StreamWriteTimeout bounds a write to a stream or a socket. A slower client is disconnected,
	// and can reconnect with its cursor. The default is 10 s.
	StreamWriteTimeout time.Duration
}

const (
	// maxPollWait bounds a long poll, unless the options say otherwise.
	maxPollWait       = time.Minute
	defaultAnswerTime = 10 * time.Second
	defaultAnswerRate = 64 << 10
)

// setDefaults sets the fields that are zero, except for those that other types have defaults for.
func (opt *Options) setDefaults() {
	opt.Node = cmp.Or(opt.Node, "node")
	opt.Poll = cmp.Or(opt.Poll, time.Second)
	opt.MaxPollWait = cmp.Or(opt.MaxPollWait, maxPollWait)
	opt.BodyTimeout = cmp.Or(opt.BodyTimeout, 30*time.Second)
	opt.AnswerTime = cmp.Or(opt.AnswerTime, defaultAnswerTime)
	opt.AnswerRate = cmp.Or(opt.AnswerRate, defaultAnswerRate)
	opt.Heartbeat = cmp.Or(opt.Heartbeat, 5*time.Second)
	opt.StreamWriteTimeout = cmp.Or(opt.StreamWriteTimeout, 10*time.Second)
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Webhooks == nil {
		opt.Webhooks = &webhook.Guard{}
	}
	if opt.Sender == nil {
		opt.Sender = webhook.NewHTTP(webhook.HTTPOptions{Guard: opt.Webhooks})
	}
}
