package perdure

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A WebhookID names an endpoint: "wh_" and a UUID.
type WebhookID string

// A Webhook is an endpoint to which the server sends lines of logs: of all runs of its tenant, of
// the runs of a thread, or of the runs that were submitted with its URL.
type Webhook struct {
	Tenant      TenantID
	ID          WebhookID
	Scope       string   // OfTenant, OfThread or OfRun
	ThreadID    ThreadID // with OfThread: the thread
	URL         string
	Events      []string // types of lines; empty means NotifiedLines
	Format      WebhookFormat
	Description string

	SecretVersion int     // secrets are derived from it, and never stored
	RotatedAt     Instant // when the last rotation replaced the version before

	CreatedAt      Instant
	DisabledAt     Instant // if set, nothing is sent
	DisabledReason string
	FailingAt      Instant // if set, every delivery has failed since then
	DeletedAt      Instant // if set, the row is kept only for its history
	UnusedAt       Instant // for a webhook of runs: no run that came with it lives longer
	Version        int64
}

// The scopes of a webhook: the runs whose lines it receives.
const (
	OfTenant = "tenant"
	OfThread = "thread"
	OfRun    = "run"
)

// Limits of webhooks.
const (
	MaxURL      = 2048
	MaxWebhooks = 100 // of a tenant, not counting webhooks of runs
	// MaxRunWebhooks limits the new URLs that a tenant's submissions may name within RunWebhooksIn.
	MaxRunWebhooks = 10_000
	RunWebhooksIn  = time.Hour
	MaxEventNames  = 50
	RotationGrace  = 24 * time.Hour // the time after a rotation in which the old secret still signs too
)

// Active tells whether the webhook is neither disabled nor deleted.
func (w *Webhook) Active() bool { return w.DisabledAt == 0 && w.DeletedAt == 0 }

// Wants tells whether the webhook receives a line of a run of that thread.
func (w *Webhook) Wants(thread ThreadID, line LineType) bool {
	return w.Active() && (w.ThreadID == "" || w.ThreadID == thread) && WantsLine(w.Events, line)
}

// RunWebhookID returns the id of the webhook of runs that are submitted with a URL. It is a hash,
// so that concurrent submissions create the same webhook.
//
// A format makes another webhook of the same URL.
func RunWebhookID(t TenantID, url string, f WebhookFormat) WebhookID {
	text := string(t) + "\x00" + url
	if f != "" {
		text += "\x00" + string(f)
	}
	h := sha256.Sum256([]byte(text))
	return WebhookID("wh_" + uuid([16]byte(h[:])))
}

// NotifiedLines lists the types that a webhook without a list of its own receives: ends, stalls,
// holds, and what follows an end.
var NotifiedLines = []LineType{
	LineCompleted, LineFailed, LineTimedOut, LineCancelled, LineSlow, LineStale, LineHeld,
	LineContinued, LineLateResult, LineDeadLettered,
}

// WantsLine tells whether a list of events includes a type of line: by its name, by a prefix such
// as "run:*", or by "*". The wildcards do not include heartbeats and deltas, which are too many. An
// empty list means NotifiedLines.
func WantsLine(events []string, line LineType) bool {
	if len(events) == 0 {
		return slices.Contains(NotifiedLines, line)
	}
	for _, e := range events {
		prefix, wild := strings.CutSuffix(e, "*")
		if LineType(e) == line ||
			(wild && strings.HasPrefix(string(line), prefix) && line != LineHeartbeat && line != LineDelta) {
			return true
		}
	}
	return false
}

// checkEvents checks a webhook's list of events.
func checkEvents(field string, events []string) error {
	if len(events) > MaxEventNames {
		return Invalid(field, "names %d events; %d are allowed, and \"*\" is all of them", len(events), MaxEventNames)
	}
	for _, e := range events {
		prefix, wild := strings.CutSuffix(e, "*")
		ok := e == "*" || slices.Contains(LineTypes, LineType(e))
		switch {
		case LineType(e) == LineDelta || e == "llm:*":
			return Invalid(field, "%q is streamed, and never sent to a webhook", e)
		case wild && strings.HasSuffix(prefix, ":"):
			known := func(t LineType) bool { return strings.HasPrefix(string(t), prefix) }
			ok = prefix == "x:" || slices.ContainsFunc(LineTypes, known)
		case strings.HasPrefix(e, "x:"):
			ok = checkName(field, e) == nil && !strings.Contains(e, " ")
		}
		if !ok {
			return Invalid(field, "%.100q is no event: give a type such as \"run:completed\", "+
				"a prefix such as \"run:*\", or \"*\"", e)
		}
	}
	return nil
}

// A WebhookFormat is the form of the bodies that a webhook receives. Empty is Perdure's own; the others
// are those of the doors with these names, and are there whether or not the door is on.
type WebhookFormat string

// The formats of webhooks. FormatPerdure is stored as the empty format.
const (
	FormatPerdure   WebhookFormat = "perdure"
	FormatOpenAI    WebhookFormat = "openai"
	FormatLangGraph WebhookFormat = "langgraph"
)

// WebhookFormats lists the formats.
var WebhookFormats = []WebhookFormat{FormatPerdure, FormatOpenAI, FormatLangGraph}

// A format that has lines tells of these alone: of ends, and of what may show that a run waits for a
// person. Its webhooks receive nothing for a line that shows no such thing.
var endsAndQuestions = []LineType{LineCompleted, LineFailed, LineTimedOut, LineCancelled, LineSuspended,
	LineWaitOpened, LineWorkerAsks}

// openAIRun is a key in the metadata of runs that have come through the door openai.
const openAIRun = "door.openai"

// CheckFormat checks a format and the events that go with it, and returns both as they are stored. A
// format without a list of events gets all those that it tells of.
func CheckFormat(field string, f WebhookFormat, eventsField string, events []string) (WebhookFormat, []string, error) {
	switch f {
	case "", FormatPerdure:
		return "", events, checkEvents(eventsField, events)
	case FormatOpenAI, FormatLangGraph:
	default:
		return "", nil, &Error{Code: CodeUnknownFormat, Field: field,
			Message: fmt.Sprintf("%q is none of perdure, openai, langgraph", fmt.Sprintf("%.40s", string(f)))}
	}
	if len(events) == 0 {
		for _, l := range endsAndQuestions {
			events = append(events, string(l))
		}
		return f, events, nil
	}
	for _, e := range events {
		if !slices.Contains(endsAndQuestions, LineType(e)) {
			return "", nil, Invalid(eventsField, "%.100q is no event that the format %s tells of, such as "+
				"\"run:completed\"", e, f)
		}
	}
	return f, events, nil
}

// Tells tells whether the webhook's format has anything to say about a run. OpenAI's has only about those
// of its door, unless the run came with the webhook.
func (w *Webhook) Tells(r *Run) bool {
	if w.Format != FormatOpenAI || w.Scope == OfRun {
		return true
	}
	var metadata map[string]json.RawMessage
	return strings.Contains(string(r.Metadata), `"`+openAIRun+`"`) &&
		json.Unmarshal([]byte(r.Metadata), &metadata) == nil && metadata[openAIRun] != nil
}

// CheckURL checks the form of a webhook's URL. The sender checks whether the address is allowed.
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

// A Notification is the delivery of one line to one webhook.
type Notification struct {
	Tenant  TenantID
	RunID   RunID
	Seq     int64 // number of the line
	Webhook WebhookID
	Type    LineType
	State   string
	// Attempts counts how often a sender claimed it. The number fences out earlier senders.
	Attempts int64
	// Tries counts the attempts since its schedule began, which a redelivery by hand restarts.
	Tries     int64
	CreatedAt Instant
	AlarmAt   Instant // pending: the time of the next attempt
	Status    int     // HTTP status of the last attempt, 0 if there was no answer
	Error     string  // why the last attempt failed, or why it was given up
	Version   int64
}

// States of a notification.
const (
	NotePending   = "pending"   // sent when its alarm is due
	NoteDelivered = "delivered" // the receiver has answered with success
	NoteDead      = "dead"      // given up; it can be sent again by hand
	NoteDropped   = "dropped"   // its webhook was deleted, or its format has nothing to tell
)

// NoteStates lists all states of a notification.
var NoteStates = []string{NotePending, NoteDelivered, NoteDead, NoteDropped}

// ID returns the id of the notification, which is the same for every attempt. It encodes the run,
// the webhook and the line, so that it can be resolved without a lookup.
func (n *Notification) ID() string {
	b := make([]byte, 0, 40)
	b = append(b, packID(string(n.RunID))...)
	b = append(b, packID(strings.TrimPrefix(string(n.Webhook), "wh_"))...)
	b = binary.AppendUvarint(b, uint64(n.Seq))
	return "msg_" + base64.RawURLEncoding.EncodeToString(b)
}

// ParseNotificationID decodes the run, the line and the webhook of an id.
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

// packID returns a UUID as 16 bytes.
func packID(id string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(b) != 16 {
		h := sha256.Sum256([]byte(id)) // not a UUID: the hash identifies it but cannot be decoded
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
	Error    string // why there was no answer, or why it is not a success
	Response string // the beginning of the answer's body
}
