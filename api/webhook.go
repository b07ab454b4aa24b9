package api

import "github.com/perdure/perdure"

// CreateWebhook registers a receiver for what happens to a tenant's runs, or to those of a thread.
type CreateWebhook struct {
	URL         string           `json:"url"`
	ThreadID    perdure.ThreadID `json:"thread_id,omitempty"` // empty: all runs of the tenant
	Events      []string         `json:"events,omitempty"`    // types, or prefixes such as "run:*"; empty: ends, stalls, and what follows an end
	Description string           `json:"description,omitempty"`
}

// ChangeWebhook changes what is given of a webhook, and nothing else.
type ChangeWebhook struct {
	URL         *string   `json:"url,omitempty"`
	Events      *[]string `json:"events,omitempty"`
	Description *string   `json:"description,omitempty"`
	Disabled    *bool     `json:"disabled,omitempty"`
}

// A Webhook is a receiver as callers see it.
type Webhook struct {
	WebhookID      perdure.WebhookID `json:"webhook_id"`
	URL            string            `json:"url"`
	Scope          string            `json:"scope"` // whose runs it is told of: "tenant", "thread", or "run" for those that were started with its URL
	ThreadID       perdure.ThreadID  `json:"thread_id,omitempty"`
	Events         []string          `json:"events,omitempty"` // of one with the scope "run" they come with each run
	Description    string            `json:"description,omitempty"`
	Disabled       bool              `json:"disabled"`
	DisabledAt     perdure.Instant   `json:"disabled_at,omitempty"`
	DisabledReason string            `json:"disabled_reason,omitempty"`
	FailingAt      perdure.Instant   `json:"failing_at,omitempty"` // since when nothing reaches it
	RotatedAt      perdure.Instant   `json:"rotated_at,omitempty"`
	CreatedAt      perdure.Instant   `json:"created_at"`
}

// NewWebhook is a webhook with its secret, which is shown this once: when it is made, and when it is rotated.
type NewWebhook struct {
	Webhook
	Secret string `json:"secret,omitempty"` // not in an answer that is repeated after another rotation
}

// Webhooks lists the registered webhooks.
type Webhooks struct {
	Webhooks   []Webhook `json:"webhooks"`
	NextCursor string    `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

// WebhookTested says what came of a test message.
type WebhookTested struct {
	Delivered bool   `json:"delivered"`
	Status    int    `json:"status,omitempty"` // of the answer, if one came
	Error     string `json:"error,omitempty"`
	Response  string `json:"response,omitempty"` // its beginning
	TookMS    int64  `json:"took_ms"`
}

// A Delivery is one event on its way to one webhook.
type Delivery struct {
	DeliveryID    string            `json:"delivery_id"` // the webhook-id of the message, the same with every attempt
	WebhookID     perdure.WebhookID `json:"webhook_id"`
	RunID         perdure.RunID     `json:"run_id"`
	Seq           int64             `json:"seq"` // of the event
	Type          string            `json:"type"`
	State         string            `json:"state"` // "pending", "delivered", "dead" or "dropped"
	Attempts      int64             `json:"attempts"`
	CreatedAt     perdure.Instant   `json:"created_at"`
	NextAttemptAt perdure.Instant   `json:"next_attempt_at,omitempty"`
	LastStatus    int               `json:"last_status,omitempty"`
	LastError     string            `json:"last_error,omitempty"`
}

// Deliveries is a page of what a webhook was told, newest first.
type Deliveries struct {
	Deliveries []Delivery `json:"deliveries"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// DeliveryHistory is a delivery with every attempt that was made.
type DeliveryHistory struct {
	Delivery
	History []DeliveryAttempt `json:"history"`
}

// A DeliveryAttempt is one sending, and what came of it.
type DeliveryAttempt struct {
	N        int64           `json:"n"`
	At       perdure.Instant `json:"at"`
	TookMS   int64           `json:"took_ms"`
	Status   int             `json:"status,omitempty"`
	Error    string          `json:"error,omitempty"`
	Response string          `json:"response,omitempty"`
}
