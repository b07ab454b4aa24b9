package perdure

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A WebhookID names an endpoint: "wh_" and a UUID.
type WebhookID string

// A Webhook is an endpoint that is told of lines of logs: of all runs of its tenant, of those of a thread, or of
// those that were submitted with its URL.
type Webhook struct {
	Tenant      TenantID
	ID          WebhookID
	Scope       string   // OfTenant, OfThread or OfRun
	ThreadID    ThreadID // whose runs, if it is a thread's
	URL         string
	Events      []string // which lines; empty: NotifiedLines
	Description string

	SecretVersion int     // secrets are derived from it, and never stored
	RotatedAt     Instant // when the version before this one was replaced

	CreatedAt      Instant
	DisabledAt     Instant // set: nothing is sent to it
	DisabledReason string
	FailingAt      Instant // set while nothing reaches it: since when
	DeletedAt      Instant // set: it is only there for its history
	UnusedAt       Instant // of a run's: no run that came with it lives longer
	Version        int64
}

// What a webhook is told of.
const (
	OfTenant = "tenant"
	OfThread = "thread"
	OfRun    = "run"
)

// Limits of webhooks.
const (
	MaxURL      = 2048
	MaxWebhooks = 100 // of a tenant, beside those of runs
	// MaxRunWebhooks is how many URLs that were not known a tenant's submissions may name within RunWebhooksIn.
	MaxRunWebhooks = 10_000
	RunWebhooksIn  = time.Hour
	MaxEventNames  = 50
	RotationGrace  = 24 * time.Hour // for how long the secret before the last rotation still signs
)

// Active tells whether it is sent anything.
func (w *Webhook) Active() bool { return w.DisabledAt == 0 && w.DeletedAt == 0 }

// Wants tells whether it is told of a run's line.
func (w *Webhook) Wants(thread ThreadID, line string) bool {
	return w.Active() && (w.ThreadID == "" || w.ThreadID == thread) && WantsLine(w.Events, line)
}

// RunWebhookID is the id of the endpoint of runs that are submitted with a URL: whoever makes it first, it is the
// same.
func RunWebhookID(t TenantID, url string) WebhookID {
	h := sha256.Sum256([]byte(string(t) + "\x00" + url))
	return WebhookID("wh_" + uuid([16]byte(h[:])))
}

// NotifiedLines are what a webhook is told of that does not say: ends, stalls, and what comes after an end.
var NotifiedLines = []string{LineCompleted, LineFailed, LineTimedOut, LineCancelled, LineSlow, LineStale, LineContinued, LineLateResult, LineDeadLettered}

// WantsLine tells whether a list of events has a type of line in it: by its name, by "run:*", or by "*", which is
// everything but what comes in masses. An empty list is NotifiedLines.
func WantsLine(events []string, line string) bool {
	if len(events) == 0 {
		return slices.Contains(NotifiedLines, line)
	}
	for _, e := range events {
		prefix, wild := strings.CutSuffix(e, "*")
		if e == line || (wild && strings.HasPrefix(line, prefix) && line != LineHeartbeat && line != LineDelta) {
			return true
		}
	}
	return false
}

// CheckEvents checks what a webhook asks to be told of.
func CheckEvents(field string, events []string) error {
	if len(events) > MaxEventNames {
		return Invalid(field, "names %d events; %d are allowed, and \"*\" is all of them", len(events), MaxEventNames)
	}
	for _, e := range events {
		prefix, wild := strings.CutSuffix(e, "*")
		ok := e == "*" || slices.Contains(LineTypes, e)
		switch {
		case e == LineDelta || e == "llm:*":
			return Invalid(field, "%q is streamed, and never sent to a webhook", e)
		case wild && strings.HasSuffix(prefix, ":"):
			ok = prefix == "x:" || slices.ContainsFunc(LineTypes, func(t string) bool { return strings.HasPrefix(t, prefix) })
		case strings.HasPrefix(e, "x:"):
			ok = checkName(field, e) == nil && !strings.Contains(e, " ")
		}
		if !ok {
			return Invalid(field, "%.100q is no event: give a type such as \"run:completed\", a prefix such as \"run:*\", or \"*\"", e)
		}
	}
	return nil
}

// CheckURL checks the form of a webhook's URL. Whether it may be called is for who calls it to know.
func CheckURL(field, raw string) error {
	if len(raw) > MaxURL {
		return Invalid(field, "is longer than %d bytes", MaxURL)
	}
	u, err := url.Parse(raw)
	if err != nil || !cleanText(raw) || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" {
		return Invalid(field, "is not a URL such as https://example.com/hook")
	}
	return nil
}

// A Notification is a line that a webhook is told of.
type Notification struct {
	Tenant    TenantID
	RunID     RunID
	Seq       int64 // of the line
	Webhook   WebhookID
	Type      string // of the line
	State     string
	Attempts  int64 // how often it was taken to be sent: what fences out who took it before
	Tries     int64 // of these, since its schedule began
	CreatedAt Instant
	AlarmAt   Instant // when it is sent next; set while it is pending
	Status    int     // HTTP status of the last attempt, 0 if there was no answer
	Error     string  // why the last attempt, or all of it, failed
	Version   int64
}

// States of a notification.
const (
	NotePending   = "pending"   // it is sent when its alarm rings
	NoteDelivered = "delivered" // the receiver has it
	NoteDead      = "dead"      // it was given up; it can be sent again by hand
	NoteDropped   = "dropped"   // its webhook was deleted
)

// NoteStates are all of them.
var NoteStates = []string{NotePending, NoteDelivered, NoteDead, NoteDropped}

// ID names the notification: the same with every attempt. It holds what it names, so that nobody has to look it up.
func (n *Notification) ID() string {
	b := make([]byte, 0, 40)
	b = append(b, packID(string(n.RunID))...)
	b = append(b, packID(strings.TrimPrefix(string(n.Webhook), "wh_"))...)
	b = binary.AppendUvarint(b, uint64(n.Seq))
	return "msg_" + base64.RawURLEncoding.EncodeToString(b)
}

// ParseNotificationID gives the run, the line and the webhook that an id names.
func ParseNotificationID(id string) (run RunID, seq int64, w WebhookID, ok bool) {
	text, found := strings.CutPrefix(id, "msg_")
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !found || err != nil || len(b) < 33 {
		return "", 0, "", false
	}
	n, size := binary.Uvarint(b[32:])
	run, w = RunID(uuid([16]byte(b))), WebhookID("wh_"+uuid([16]byte(b[16:])))
	seq = int64(n)
	again := Notification{RunID: run, Seq: seq, Webhook: w}
	return run, seq, w, size == len(b)-32 && seq > 0 && again.ID() == id
}

// packID is a UUID as 16 bytes.
func packID(id string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(b) != 16 {
		h := sha256.Sum256([]byte(id)) // no id of ours: it has a name, which leads nowhere
		return h[:16]
	}
	return b
}

// A WebhookAttempt is one attempt to send a notification.
type WebhookAttempt struct {
	Tenant   TenantID
	RunID    RunID
	Seq      int64
	Webhook  WebhookID
	N        int64 // from 1
	At       Instant
	Took     time.Duration
	Status   int    // HTTP status, 0 if there was no answer
	Error    string // why there was none, or why it does not count
	Response string // the beginning of the answer
}
