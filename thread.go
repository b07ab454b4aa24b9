package perdure

// A Thread is a conversation: an append-only list of messages that is kept independently of its
// runs. It has at most one active run.
type Thread struct {
	Tenant    TenantID
	ID        ThreadID
	Metadata  Value
	CreatedAt Instant
	Version   int64
	Active    RunID // the run that is claimable, leased or suspended on the thread
	Seq       int64 // number of the last message
}

// A ThreadMessage is a message as it is stored in its thread.
type ThreadMessage struct {
	Tenant   TenantID `json:"-"`
	ThreadID ThreadID `json:"thread_id"`
	Seq      int64    `json:"seq"`
	Role     string   `json:"role"`
	Content  Value    `json:"content"`
	Metadata Value    `json:"metadata,omitempty"`
	RunID    RunID    `json:"run_id,omitempty"`
	At       Instant  `json:"at"`
}
