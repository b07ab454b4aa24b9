package perdure

// A WaitReason says why a queued run is not executed yet. A reason keeps its name; more may be added.
type WaitReason string

const (
	// WaitingNoSigner: the tenant's runs have to be signed, and the server has no key to verify them.
	WaitingNoSigner WaitReason = "no_signer"
	// WaitingQueuePaused: somebody has paused its queue.
	WaitingQueuePaused WaitReason = "queue_paused"
	// WaitingKindPaused: somebody has paused its kind.
	WaitingKindPaused WaitReason = "kind_paused"
	// WaitingThreadBusy: it is behind another run of its thread.
	WaitingThreadBusy WaitReason = "thread_busy"
	// WaitingCopying: the journal of the run that it retries is being copied.
	WaitingCopying WaitReason = "copying"
	// WaitingHeld: its program has a defect, and no other build has taken it; see Hold.
	WaitingHeld WaitReason = "held"
	// WaitingNotBefore: its time has not come, because it was started for later or is tried again later.
	WaitingNotBefore WaitReason = "not_before"
	// WaitingLimit: a limit that it is under has no room for it.
	WaitingLimit WaitReason = "limit"
	// WaitingOwnRunner: it is a process that only its own runner may take.
	WaitingOwnRunner WaitReason = "own_runner"
	// WaitingUnserved: no worker polls for its kind on its queue.
	WaitingUnserved WaitReason = "unserved"
	// WaitingNoFreeSlot: workers poll for it, and none has had a free slot yet.
	WaitingNoFreeSlot WaitReason = "no_free_slot"
)

// A WaitingFor says why a queued run is not executed yet: the first reason, if it has several.
type WaitingFor struct {
	Reason WaitReason `json:"reason"`
	// Text says it in words, for people.
	Text string `json:"text"`
	// Since is when it began, and Until when it ends by itself, as far as that is known.
	Since Instant `json:"since,omitempty"`
	Until Instant `json:"until,omitempty"`
	// Limits has the limit that it waits at, if the reason is WaitingLimit.
	Limits []WaitingAtLimit `json:"limits,omitempty"`
}

// A WaitingAtLimit says which limit a run waits at.
type WaitingAtLimit struct {
	LimitRef
	Since Instant `json:"since,omitempty"`
	// Ahead counts the runs that go before it, at least. Keys take turns, and those of other keys count
	// only at a limit without a key.
	Ahead int `json:"ahead"`
	// ClosedUntil is set while the limit is closed.
	ClosedUntil Instant `json:"closed_until,omitempty"`
}
