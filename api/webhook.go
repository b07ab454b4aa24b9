package api

import "github.com/perdure/perdure"

// CreateWebhook is the body of a request for a new webhook, for the runs of a tenant or of a
// thread.
type CreateWebhook struct {
	URL      string           `json:"url"`
	ThreadID perdure.ThreadID `json:"thread_id,omitempty"` // empty for all runs of the tenant
	// Events are types, or prefixes such as "run:*". Empty means perdure.NotifiedLines: ends,
	// stalls, and what follows an end; or what the format tells of.
	Events []string `json:"events,omitempty"`
	// Format is the form of the bodies: empty or "perdure" for Perdure's own, or the name of a door.
	Format      perdure.WebhookFormat `json:"format,omitempty"`
	Description string                `json:"description,omitempty"`
}

// ChangeWebhook changes the fields of a webhook that are given.
type ChangeWebhook struct {
	URL    *string   `json:"url,omitempty"`
	Events *[]string `json:"events,omitempty"`
	// Another format sets the events that it tells of, unless events are given.
	Format      *perdure.WebhookFormat `json:"format,omitempty"`
	Description *string                `json:"description,omitempty"`
	Disabled    *bool                  `json:"disabled,omitempty"`
}

// A Webhook is a webhook as the API shows it.
type Webhook struct {
	WebhookID perdure.WebhookID `json:"webhook_id"`
	URL       string            `json:"url"`
	// Scope is "tenant", "thread", or "run" for the runs that were started with its URL.
	Scope    string           `json:"scope"`
	ThreadID perdure.ThreadID `json:"thread_id,omitempty"`
	// Events is empty for the scope "run": each run has its own.
	Events []string `json:"events,omitempty"`
	// Format is the form of the bodies. Empty is Perdure's own.
	Format         perdure.WebhookFormat `json:"format,omitempty"`
	Description    string                `json:"description,omitempty"`
	Disabled       bool                  `json:"disabled"`
	DisabledAt     perdure.Instant       `json:"disabled_at,omitempty"`
	DisabledReason string                `json:"disabled_reason,omitempty"`
	FailingAt      perdure.Instant       `json:"failing_at,omitempty"` // since when every delivery has failed
	RotatedAt      perdure.Instant       `json:"rotated_at,omitempty"`
	CreatedAt      perdure.Instant       `json:"created_at"`
}

// NewWebhook is a webhook with its secret. The secret is shown when the webhook is created and when
// it is rotated. An answer that is repeated after another rotation is without it.
type NewWebhook struct {
	Webhook
	Secret string `json:"secret,omitempty"`
}

// Webhooks lists the registered webhooks.
type Webhooks struct {
	Webhooks   []Webhook `json:"webhooks"`
	NextCursor string    `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

// WebhookTested is the result of a test message.
type WebhookTested struct {
	Delivered bool   `json:"delivered"`
	Status    int    `json:"status,omitempty"` // HTTP status, if there was an answer
	Error     string `json:"error,omitempty"`
	Response  string `json:"response,omitempty"` // beginning of the answer's body
	TookMS    int64  `json:"took_ms"`
}

// A Delivery is the delivery of one event to one webhook.
type Delivery struct {
	DeliveryID    string            `json:"delivery_id"` // the webhook-id header, the same in every attempt
	WebhookID     perdure.WebhookID `json:"webhook_id"`
	RunID         perdure.RunID     `json:"run_id"`
	Seq           int64             `json:"seq"` // number of the event
	Type          perdure.LineType  `json:"type"`
	State         string            `json:"state"` // "pending", "delivered", "dead" or "dropped"
	Attempts      int64             `json:"attempts"`
	CreatedAt     perdure.Instant   `json:"created_at"`
	NextAttemptAt perdure.Instant   `json:"next_attempt_at,omitempty"`
	LastStatus    int               `json:"last_status,omitempty"`
	LastError     string            `json:"last_error,omitempty"`
}

// Deliveries is a page of a webhook's deliveries, newest first.
type Deliveries struct {
	Deliveries []Delivery `json:"deliveries"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// DeliveryHistory is a delivery with all its attempts.
type DeliveryHistory struct {
	Delivery
	History []DeliveryAttempt `json:"history"`
}

// A DeliveryAttempt is one attempt of a delivery and its result.
type DeliveryAttempt struct {
	N        int64           `json:"n"`
	At       perdure.Instant `json:"at"`
	TookMS   int64           `json:"took_ms"`
	Status   int             `json:"status,omitempty"`
	Error    string          `json:"error,omitempty"`
	Response string          `json:"response,omitempty"`
}
