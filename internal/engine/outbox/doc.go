// Package outbox has the webhooks: endpoints, the notifications that a transition stages for them,
// and what became of each delivery.
//
// Add registers notify as a hook of every transition. Nothing is sent here: internal/webhook takes
// due notifications, sends them and reports.
//
// # Where to start reading
//
// webhook.go has the endpoints, notify.go what a transition stages, deliver.go the deliveries; then
// webhook_cache.go, webhook_list.go, webhook_secret.go, posting.go, fanout.go, outbox.go.
package outbox
