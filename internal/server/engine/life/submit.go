package life

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/largejson"
	"github.com/perdure/perdure/internal/server/store"
)

// Submit accepts a run. With a Key it is idempotent: the same key and body give the same run.
type Submit struct {
	Tenant     perdure.TenantID
	Submission perdure.Submission
	Key        string
	// Node is a node on which a caller waits for the run from the start.
	Node string
	// Expects says that no caller waits yet, but a follower will: it has DetachGrace to attach.
	Expects bool

	Run perdure.Run
	// Created is false if the key was known.
	Created bool
	// WebhookSecret is set if this submission created its webhook's endpoint. A repeated submission
	// with the same key gets it again.
	WebhookSecret string

	// checked is the submission with its defaults filled in.
	checked perdure.Submission
	// digest is that of the checked submission, if there is a key.
	digest  kernel.BodyDigest
	invalid error
	// chat is set if the run converses; see Chat.
	chat bool
}

// IdempotencyKey names the key that Do looks up. The store reads those of a whole batch at once. A
// key that Do refuses is not looked up: one that the database can't hold would fail the batch.
func (op *Submit) IdempotencyKey() (perdure.TenantID, string) {
	if op.Key == "" || op.invalid != nil {
		return op.Tenant, ""
	}
	return op.Tenant, store.RunKeys + op.Key
}

// prepare validates the submission and computes its digest.
func (op *Submit) Prepare() {
	op.checked, op.digest = op.Submission, kernel.BodyDigest{}
	if op.invalid = op.checked.Validate(); op.invalid != nil || op.Key == "" {
		return
	}
	if op.invalid = perdure.CheckText("idempotency-key", op.Key); op.invalid != nil {
		return
	}
	marshal := json.Marshal
	if len(op.checked.Input) > largejson.Size {
		marshal = largejson.Marshal
	}
	var body []byte
	body, op.invalid = marshal(&op.checked)
	op.digest = kernel.DigestBody(body)
}

// Needs names no run: a new one is not stored yet.
func (*Submit) Needs() []store.Ref { return nil }

// Lane keeps new runs apart from work on existing ones.
func (*Submit) Lane() store.Lane { return store.LaneSubmit }

// Do accepts the run.
func (op *Submit) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	sub, digest := &op.checked, op.digest
	// An earlier try of this batch may have set it.
	op.WebhookSecret = ""
	if op.Key != "" {
		known, ok, err := tx.DB.Idempotency.Get(op.Tenant, store.RunKeys+op.Key)
		if err != nil {
			return err
		}
		if ok {
			if !digest.Is(known.Digest) {
				return perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another body")
			}
			op.Created = false
			if op.Run, err = tx.Run(op.Tenant, perdure.RunID(known.Ref)); err != nil {
				return err
			}
			op.WebhookSecret, err = outbox.FirstSecret(tx, &op.Run)
			return err
		}
	}
	runAt := sub.RunAt
	if sub.Delay > 0 {
		runAt = tx.Now.Add(time.Duration(sub.Delay))
	}
	r := perdure.Run{
		Tenant: op.Tenant, Kind: sub.Kind, Class: sub.Class, Queue: sub.Queue, Priority: sub.Priority,
		ThreadID:    sub.ThreadID,
		MaxAttempts: sub.MaxAttempts,
		Options: perdure.Options{Timeout: sub.Timeout, RunAt: runAt, OnDisconnect: sub.OnDisconnect,
			Foreground: sub.Foreground, Chat: op.chat, First: sub.MultitaskStrategy == perdure.MultitaskInterrupt},
	}
	if err := takeFromKind(tx, &r, op.Submission.Class != ""); err != nil {
		return err
	}
	if sub.Webhook != "" {
		id, secret, err := outbox.CreateRunWebhook(tx, op.Tenant, sub.Webhook, outbox.CheckRunWebhookQuota)
		if err != nil {
			return err
		}
		r.Options.Webhook, r.Options.WebhookLines, op.WebhookSecret = perdure.Value(id),
			strings.Join(sub.WebhookEvents, " "), secret
	}
	if err := acceptRun(tx, &r, sub.Input, sub.Metadata, sub.Messages, sub.MultitaskStrategy); err != nil {
		return err
	}
	if op.Key != "" {
		tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: op.Tenant, Key: store.RunKeys + op.Key, Digest: digest.Value,
			Ref:       string(r.ID),
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
	}
	switch {
	case op.Node != "":
		tx.DB.Waiters.Put(store.WaiterRow{Tenant: op.Tenant, RunID: r.ID, Node: op.Node,
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().WaiterTTL)})
	case op.Expects:
		tx.DB.Waiters.Put(store.WaiterRow{Tenant: op.Tenant, RunID: r.ID, Node: expected,
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().DetachGrace)})
	}
	op.Run, op.Created = r, true
	return nil
}

// takeFromKind fills in what a request for a new run does not say: class, timeout and attempts of
// its kind. Where the kind is silent, the policy counts. A run of an unknown kind that is on no thread
// has an open class; see perdure.Settlement.
func takeFromKind(tx *kernel.Tx, r *perdure.Run, classGiven bool) error {
	kind, known, err := rules.LookUpKind(tx, r.Tenant, r.Kind, false)
	if err != nil {
		return err
	}
	switch {
	case classGiven:
	case kind.Class != "":
		r.Class = kind.Class
	case !known && r.Class == perdure.Task: // the default of a request without a thread
		r.Class, r.Options.Open = perdure.Agent, true
	}
	r.Options.Process = r.Class == perdure.Process
	if r.Options.Timeout == 0 {
		r.Options.Timeout = tx.Engine.Policy().DefaultTimeout(r.Class, kind)
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = kind.RetryPolicy().MaxAttempts
	}
	return nil
}

// acceptRun stages a new run: a submission, a child, a retry or a continuation. The caller has set
// the fields in which these differ. acceptRun sets the id, deadline, signature and place on the
// thread, and stages the opening messages. A run that interrupts another one on its thread asks
// that one to stop.
func acceptRun(
	tx *kernel.Tx, r *perdure.Run, input json.RawMessage, metadata map[string]string,
	opening []perdure.Message, strategy perdure.MultitaskStrategy,
) error {
	p := tx.Policy()
	id, err := tx.NewID()
	if err != nil {
		return err
	}
	r.ID = perdure.RunID(id)
	if r.RootID == "" {
		r.RootID = r.ID
	}
	r.CreatedAt = tx.Now
	from := tx.Now
	if r.Options.RunAt > from {
		// Not Sub: a Duration does not reach the year 9999.
		if r.Options.RunAt > from.Add(perdure.MaxWait) {
			return perdure.Invalid("run_at", "lies more than %s ahead", perdure.MaxWait)
		}
		from = r.Options.RunAt
	}
	if r.DeadlineAt == 0 {
		if r.DeadlineAt, err = p.Deadline(r.Class, r.Options.Timeout, from); err != nil {
			return err
		}
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = p.MaxAttempts
	}
	if id := string(r.Options.Webhook); strings.HasPrefix(id, "wh_") {
		if err := outbox.NeedWebhook(tx, r.Tenant, perdure.WebhookID(id), r.DeadlineAt); err != nil {
			return err
		}
	}
	if err := ensureTenantAndQueue(tx, r); err != nil {
		return err
	}
	if len(input) > 0 {
		r.Input = tx.DB.Values.Intern(r.Tenant, id, input)
	}
	if err := rules.SignRun(tx, r); err != nil {
		return err
	}
	if len(metadata) > 0 {
		b, err := json.Marshal(metadata)
		if err != nil {
			return err
		}
		r.Metadata = perdure.Value(b)
	}
	if len(opening) > 0 {
		b, err := json.Marshal(opening)
		if err != nil {
			return err
		}
		r.Options.Opening = tx.DB.Values.Intern(r.Tenant, id, b)
	}

	r.State, r.Attempt, r.ReadyAt = perdure.Queued, 1, from
	var interrupts perdure.RunID
	if r.ThreadID != "" {
		if interrupts, err = queueOnThread(tx, r, strategy); err != nil {
			return err
		}
	}
	r.Ready = from <= tx.Now && r.Turn <= perdure.TurnActive && !r.Copying()
	if err := tx.Apply(r, perdure.Accepted{}); err != nil {
		return err
	}
	if r.Turn == perdure.TurnActive {
		return appendOpening(tx, r)
	}
	if interrupts == "" {
		return nil
	}
	active, err := tx.Run(r.Tenant, interrupts)
	if err != nil {
		return err
	}
	if err := RequestCancel(tx, &active, "interrupted by a new run on its thread"); err != nil {
		return err
	}
	// The interrupted run may have ended at once, which made this one active.
	*r, err = tx.Run(r.Tenant, r.ID)
	return err
}

// ensureTenantAndQueue stages the rows of a run's tenant and queue if they are missing. It refuses
// the run if the disk is full or the tenant has reached its limit of live runs. Continuations are
// exempt: an end must not fail.
func ensureTenantAndQueue(tx *kernel.Tx, r *perdure.Run) error {
	if r.ContinuationOf == "" {
		if err := tx.DB.RefuseIfFull(); err != nil {
			return err
		}
	}
	if err := rules.EnsureQueue(tx, r.Tenant, r.Queue); err != nil {
		return err
	}
	t, ok, err := tx.DB.Tenants.Get(r.Tenant)
	if err != nil {
		return err
	}
	if !ok {
		tx.DB.Tenants.Put(store.TenantRow{ID: r.Tenant, CreatedAt: tx.Now})
	}
	if r.ContinuationOf == "" {
		return rules.Admit(tx, &t, r.Tenant)
	}
	return nil
}
