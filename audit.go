package perdure

// An AuditEntry is one entry of the audit log: who did what to which thing, and when. It is written
// in the transaction of the change that it records. It contains names, and no other text from
// callers or workers.
type AuditEntry struct {
	ID       string   `json:"id"` // ordered by time
	Tenant   TenantID `json:"tenant,omitempty"`
	At       Instant  `json:"at"`
	KeyID    string   `json:"key_id,omitempty"` // empty if no key was used or it is not shown
	KeyName  string   `json:"key_name,omitempty"`
	Platform bool     `json:"platform,omitempty"` // a platform key or an offline command
	Action   string   `json:"action"`
	Target   string   `json:"target"` // the id of the changed thing
	Detail   Value    `json:"detail,omitempty"`
	Remote   string   `json:"remote,omitempty"` // the caller's address
}

// The actions of the audit log. Their names are part of the interface.
const (
	AuditKeyCreate      = "key.create"
	AuditKeyRevoke      = "key.revoke"
	AuditSessionOpen    = "session.open"
	AuditKeyBootstrap   = "key.bootstrap" // on the first start of a store, or by the offline command
	AuditTenantChange   = "tenant.change"
	AuditRunCancel      = "run.cancel"
	AuditRunDelete      = "run.delete"
	AuditRunReleaseHold = "run.release_hold"
	AuditRunDeadLetter  = "run.dead_letter"
	AuditThreadDelete   = "thread.delete"
	AuditApprovalDecide = "approval.decide"
	AuditLateAdopt      = "late.adopt"
	AuditLateDiscard    = "late.discard"
	AuditLetterRedrive  = "dlq.redrive"
	AuditLetterDiscard  = "dlq.discard"
	AuditWebhookCreate  = "webhook.create"
	AuditWebhookChange  = "webhook.change"
	AuditWebhookRotate  = "webhook.rotate"
	AuditWebhookDelete  = "webhook.delete"
	AuditDeliveryRepeat = "delivery.redeliver"
	AuditKindChange     = "kind.change"
	AuditKindDelete     = "kind.delete"
	AuditQueueChange    = "queue.change"
	AuditQueuePause     = "queue.pause"
	AuditQueueResume    = "queue.resume"
	AuditKindPause      = "kind.pause"
	AuditKindResume     = "kind.resume"
	AuditScheduleSet    = "schedule.set"
	AuditSchedulePause  = "schedule.pause"
	AuditScheduleResume = "schedule.resume"
	AuditScheduleStart  = "schedule.trigger"
	AuditScheduleDelete = "schedule.delete"
	AuditLimitSet       = "limit.set"
	AuditLimitDelete    = "limit.delete"
	AuditLimitClose     = "limit.close"
	AuditLimitOpen      = "limit.open"
	AuditLimitKeySet    = "limit.key_set"
	AuditLimitKeyDelete = "limit.key_delete"
	AuditProcessWatch   = "process.watch"
	AuditBackup         = "backup"
	AuditRestore        = "restore"
	AuditFailoverAccept = "failover.accept"
)

// AuditActions lists all actions.
var AuditActions = []string{
	AuditKeyCreate, AuditKeyRevoke, AuditKeyBootstrap, AuditSessionOpen, AuditTenantChange,
	AuditRunCancel, AuditRunDelete, AuditRunReleaseHold, AuditRunDeadLetter, AuditThreadDelete, AuditApprovalDecide,
	AuditLateAdopt, AuditLateDiscard, AuditLetterRedrive, AuditLetterDiscard,
	AuditWebhookCreate, AuditWebhookChange, AuditWebhookRotate, AuditWebhookDelete, AuditDeliveryRepeat,
	AuditKindChange, AuditKindDelete, AuditQueueChange, AuditQueuePause, AuditQueueResume,
	AuditKindPause, AuditKindResume,
	AuditScheduleSet, AuditSchedulePause, AuditScheduleResume, AuditScheduleStart, AuditScheduleDelete,
	AuditLimitSet, AuditLimitDelete, AuditLimitClose, AuditLimitOpen, AuditLimitKeySet, AuditLimitKeyDelete,
	AuditProcessWatch, AuditBackup, AuditRestore,
	AuditFailoverAccept,
}

// MaxAuditDetail limits the detail of an entry, in bytes.
const MaxAuditDetail = 4 << 10
