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

// Submit accepts a run. With a Key it is idempotent: the same key and body give the same run. A name in
// the submission does the same, as long as the run is stored.
type Submit struct {
	Tenant     perdure.TenantID
	Submission perdure.Submission
	Key        string
	// Node is a node on which a caller waits for the run from the start.
	Node string
	// Firing is set for a run that a schedule starts.
	Firing *perdure.Firing
	// Expects says that no caller waits yet, but a follower will: it has DetachGrace to attach.
	Expects bool

	Run perdure.Run
	// Created is false if the key or the name was known.
	Created bool
	// Existing is set if another run has the unique key, and is the answer. Debounced is set if the
	// submission became a part of a run that waits.
	Existing, Debounced bool
	// WebhookSecret is set if this submission created its webhook's endpoint. A repeated submission
	// with the same key gets it again.
	WebhookSecret string

	// checked is the submission with its defaults filled in.
	checked perdure.Submission
	// digest is that of the checked submission, if there is a key or a name.
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
	if op.invalid = op.checked.Validate(); op.invalid != nil || op.Key == "" && op.checked.Name == "" {
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
	// An earlier try of this batch may have set them.
	op.WebhookSecret, op.Created, op.Existing, op.Debounced = "", false, false, false
	if done, err := op.repeated(tx); done || err != nil {
		return err
	}
	name, known, err := findName(tx, op.Tenant, store.NamedRun, sub.Name)
	if err != nil {
		return err
	}
	if known {
		return op.again(tx, &name)
	}
	since, err := op.join(tx)
	if err != nil || op.Existing || op.Debounced {
		return err
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
			Foreground: sub.Foreground, Chat: op.chat, Firing: op.Firing,
			First: sub.MultitaskStrategy == perdure.MultitaskInterrupt},
	}
	if err := takeFromKind(tx, &r, op.Submission.Class != ""); err != nil {
		return err
	}
	if err := useLimits(tx, &r, sub.Limits, sub.LimitKey, sub.Units, sub.Input); err != nil {
		return err
	}
	if err := useKey(tx, &r, sub); err != nil {
		return err
	}
	if sub.Webhook != "" {
		id, secret, err := outbox.CreateRunWebhook(tx, op.Tenant, sub.Webhook, sub.WebhookFormat,
			outbox.CheckRunWebhookQuota)
		if err != nil {
			return err
		}
		r.Options.Webhook, r.Options.WebhookLines, op.WebhookSecret = perdure.Value(id),
			strings.Join(sub.WebhookEvents, " "), secret
	}
	r.CreatedAt = since
	if err := acceptRun(tx, &r, sub.Input, sub.Metadata, sub.Messages, sub.MultitaskStrategy); err != nil {
		return err
	}
	op.remember(tx, r.ID)
	if sub.Name != "" {
		name.Owner, name.Digest = string(r.ID), digest.Value
		if err := addName(tx, name); err != nil {
			return err
		}
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

// repeated answers with the run that an earlier call under the idempotency key has made.
func (op *Submit) repeated(tx *kernel.Tx) (done bool, err error) {
	if op.Key == "" {
		return false, nil
	}
	known, ok, err := tx.DB.Idempotency.Get(op.Tenant, store.RunKeys+op.Key)
	if err != nil || !ok {
		return false, err
	}
	if !op.digest.Is(known.Digest) {
		return false, perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another body")
	}
	if op.Run, err = tx.Run(op.Tenant, perdure.RunID(known.Ref)); err != nil {
		return false, err
	}
	op.WebhookSecret, err = outbox.FirstSecret(tx, &op.Run)
	return true, err
}

// join looks whether the run that is asked for is there already, under its unique or debounce key. since
// is when a run that was replaced was created: its place in line.
func (op *Submit) join(tx *kernel.Tx) (since perdure.Instant, err error) {
	sub := &op.checked
	var known *perdure.Run
	switch {
	case sub.Unique != nil:
		known, since, err = resolveUnique(tx, op.Tenant, sub.Kind, sub.Unique)
		op.Existing = err == nil && known != nil
	case sub.Debounce != nil:
		known, err = debounceInto(tx, op.Tenant, sub)
		op.Debounced = err == nil && known != nil
	}
	if err == nil && known != nil {
		op.Run = *known
		op.remember(tx, known.ID)
	}
	return since, err
}

// remember stores the idempotency key of a submission with its run.
func (op *Submit) remember(tx *kernel.Tx, id perdure.RunID) {
	if op.Key != "" {
		tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: op.Tenant, Key: store.RunKeys + op.Key,
			Digest: op.digest.Value, Ref: string(id), ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
	}
}

// again answers with the run that has the submission's name, if the same submission made it.
func (op *Submit) again(tx *kernel.Tx, name *store.NameRow) (err error) {
	if !op.digest.Is(name.Digest) {
		return perdure.Errorf(perdure.CodeNameTaken, "another submission has made the run of this name")
	}
	op.Created = false
	if op.Run, err = tx.Run(op.Tenant, perdure.RunID(name.Owner)); err != nil {
		return err
	}
	op.remember(tx, op.Run.ID)
	op.WebhookSecret, err = outbox.FirstSecret(tx, &op.Run)
	return err
}

// useKey notes the key of a new run, and when a debounced one begins. The deadline of a debounced run
// counts from its latest begin: further submissions do not extend it.
func useKey(tx *kernel.Tx, r *perdure.Run, sub *perdure.Submission) (err error) {
	if sub.Unique == nil && sub.Debounce == nil {
		return nil
	}
	if err := tx.Requires(kernel.UniqueRuns); err != nil {
		return err
	}
	if sub.Unique != nil {
		r.Options.Unique = sub.Unique.Use(tx.Now)
	}
	if d := sub.Debounce; d != nil {
		last := tx.Now.Add(time.Duration(d.Max))
		r.Options.Debounce = &perdure.DebounceUse{Key: d.Key, Last: last}
		r.Options.RunAt = tx.Now.Add(time.Duration(d.For))
		r.DeadlineAt, err = tx.Policy().Deadline(r.Class, r.Options.Timeout, last)
	}
	return err
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
	if r.CreatedAt == 0 { // otherwise it takes the place in line of a run that was replaced
		r.CreatedAt = tx.Now
	}
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
	if len(input) > 0 && r.Options.Debounce != nil {
		r.Input = tx.DB.Values.InternShown(r.Tenant, id, input) // at most perdure.MaxDebounced: it is replaced
	} else if len(input) > 0 {
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
	if err := takeKey(tx, r); err != nil {
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
