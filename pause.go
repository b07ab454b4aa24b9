package perdure

import "time"

// MaxPauses bounds the queues and kinds of a tenant that are paused at once.
const MaxPauses = 100

// MaxPause bounds the time for which a queue or a kind is paused. A pause can also be without an end.
const MaxPause = 366 * 24 * time.Hour

// A QueuePause says that nothing is granted from a queue, or of a kind. Its runs wait, and their
// deadlines count.
type QueuePause struct {
	At Instant `json:"paused_at"`
	// Until is when the pause ends by itself. Zero: when somebody resumes the queue or kind.
	Until Instant `json:"until,omitempty"`
	// By is the name of the key that paused it. It is empty for a key of the platform, which tenants do
	// not see.
	By string `json:"paused_by,omitempty"`
	// Platform is set if a key of the platform paused it.
	Platform bool   `json:"platform,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Holds tells whether the pause holds at an instant.
func (p *QueuePause) Holds(now Instant) bool { return p.At != 0 && (p.Until == 0 || now < p.Until) }

// Message says in words that a queue is paused.
func (p *QueuePause) Message(queue string) string { return "queue " + queue + p.since() }

// MessageOfKind says in words that a kind is paused.
func (p *QueuePause) MessageOfKind(kind string) string { return "kind " + kind + p.since() }

func (p *QueuePause) since() string {
	return " has been paused since " + p.At.Time().Format(time.RFC3339)
}
