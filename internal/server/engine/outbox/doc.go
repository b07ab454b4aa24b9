// Package outbox has the webhooks: endpoints, the notifications that a transition stages for them,
// and what became of each delivery.
//
// Add registers notify as a hook of every transition. Nothing is sent here: internal/server/webhook takes
// due notifications, sends them and reports.
//
// # Where to start reading
//
// webhook.go has the endpoints, notify.go the notifications of a transition. The files build on one
// another: one uses names of those before it.
//
//   - webhook_list.go, webhook_cache.go, posting.go: lists, the cache, the endpoints that have
//     something to send.
//   - webhook.go, webhook_secret.go: endpoints and their secrets.
//   - deliver.go, notify.go, fanout.go: deliveries and their outcome; new notifications, one by one or many.
//   - outbox.go: adds the wing to an engine.
package outbox
