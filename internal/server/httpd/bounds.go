package httpd

import (
	"reflect"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
)

// A bound restricts a field of a body or a query parameter beyond its type. The OpenAPI document
// shows it. Its values are the constants that the code checks by.
type bound struct {
	// enum has the values of a text, or of the entries of a list.
	enum []string
	// least and most bound a whole number.
	least, most *int64
	// length bounds the bytes of a text.
	length int
	// items bounds the entries of a list or an object.
	items int
	// duration marks a query parameter such as 30s, or a number of seconds.
	duration bool
	// boolean marks a query parameter that is true or false.
	boolean bool

	// zero is set if an explicit zero is refused. In the domain zero means the default, so only the
	// body can tell an explicit zero from a field that is not given.
	zero bool
}

func between(least, most int64) bound { return bound{least: &least, most: &most} }

func atLeast(least int64) bound { return bound{least: &least} }

func oneOf[S ~string](list ...S) bound {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return bound{enum: out}
}

// given refuses an explicit zero.
func (b bound) given() bound {
	b.zero = true
	return b
}

var (
	aName   = bound{length: perdure.MaxName}
	aText   = bound{length: perdure.MaxText}
	aURL    = bound{length: perdure.MaxURL}
	aStatus = oneOf(append(stateNames(), perdure.StatusDeferred)...)
	anEpoch = atLeast(1)

	shownClass = oneOf(append(slices.Clone(perdure.Classes), perdure.Open)...)
)

func stateNames() (out []string) { return oneOf(perdure.States...).enum }

// enums has the values of types that have a fixed list of them.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[perdure.State](): stateNames(),
	reflect.TypeFor[perdure.Class](): oneOf(perdure.Classes...).enum,
	reflect.TypeFor[perdure.Scope](): oneOf(perdure.Scopes...).enum,
}

// work returns the bounds that submissions and children share, and more.
func work(more map[string]bound) map[string]bound {
	out := map[string]bound{
		"kind": aName, "queue": aName,
		"priority":     between(-perdure.MaxPriority, perdure.MaxPriority),
		"timeout":      bound{}.given(),
		"max_attempts": between(1, perdure.MaxAttempts).given(),
		"metadata":     {items: perdure.MaxMetadata},
	}
	for name, b := range more {
		out[name] = b
	}
	return out
}

// aFormat is the form of what a webhook receives.
var aFormat = oneOf(perdure.WebhookFormats...)

// bounds has the bounds of bodies and answers, by type and by field.
var bounds = map[reflect.Type]map[string]bound{
	reflect.TypeFor[perdure.Submission](): work(map[string]bound{
		"multitask_strategy": oneOf(perdure.MultitaskStrategies...), "on_disconnect": oneOf(perdure.Dispositions...),
		"webhook": aURL, "webhook_events": {items: perdure.MaxEventNames}, "webhook_format": aFormat,
	}),
	reflect.TypeFor[api.BatchRun](): {"idempotency_key": {length: maxKey}},
	reflect.TypeFor[perdure.Spawn](): work(map[string]bound{
		"key": aName, "on_parent_end": oneOf(perdure.Dispositions...),
	}),
	reflect.TypeFor[perdure.Commit](): {
		"commit_id": aName, "epoch": anEpoch,
	},
	reflect.TypeFor[perdure.Outcome](): {
		"type": oneOf(perdure.OutcomeTypes...), "summary": aText, "reason": aText,
	},
	reflect.TypeFor[perdure.Failure](): {"code": {length: perdure.MaxCode}, "message": aText, "cause_key": aName},
	reflect.TypeFor[perdure.KindDef](): {
		"description": aText, "timeout": bound{}.given(), "hold_timeout": bound{}.given(),
		"signals": {items: perdure.MaxSignals},
	},
	reflect.TypeFor[perdure.KindRetry](): {
		"max_attempts": between(1, perdure.MaxAttempts).given(), "backoff": bound{}.given(),
		"max_backoff": bound{}.given(), "not_retried": {items: perdure.MaxNotRetried},
	},
	reflect.TypeFor[api.AnnounceKind]():     {"build": aName},
	reflect.TypeFor[perdure.JournalEntry](): {"key": aName},
	reflect.TypeFor[perdure.Message]():      {"role": aName},
	reflect.TypeFor[perdure.Emitted]():      {"type": aName},
	reflect.TypeFor[perdure.WaitSpec](): {
		"id": aName, "name": aName, "type": oneOf(perdure.WaitTypes...), "mode": oneOf(perdure.Modes...),
	},
	reflect.TypeFor[perdure.ApprovalSpec](): {
		"default": oneOf(perdure.Approve, perdure.Reject), "form": {items: perdure.MaxFormFields},
	},
	reflect.TypeFor[perdure.FormField](): {
		"type": oneOf(perdure.FieldTypes...), "options": {items: perdure.MaxOptions},
	},
	reflect.TypeFor[perdure.Approval](): {"state": oneOf(perdure.ApprovalStates...)},
	reflect.TypeFor[api.Decide]():       {"decision": oneOf(perdure.Approve, perdure.Reject), "comment": aText},
	reflect.TypeFor[api.SendSignal]():   {"decision": oneOf(perdure.Approve, perdure.Reject), "comment": aText},
	reflect.TypeFor[api.CreateGroup](): {
		"mode": oneOf(perdure.Modes...), "on_losers": oneOf(perdure.Dispositions...), "timeout": bound{}.given(),
	},
	reflect.TypeFor[api.Group](): {
		"mode": oneOf(perdure.Modes...), "state": oneOf(perdure.GroupStates...),
		"on_losers": oneOf(perdure.Dispositions...),
	},
	reflect.TypeFor[api.ListedGroup](): {
		"mode": oneOf(perdure.Modes...), "state": oneOf(perdure.GroupStates...),
		"on_losers": oneOf(perdure.Dispositions...),
	},
	reflect.TypeFor[api.Poll]():      {"slots": between(0, dispatch.MaxSlots)},
	reflect.TypeFor[api.Lease]():     {"epoch": anEpoch},
	reflect.TypeFor[api.Beat]():      {"epoch": anEpoch, "activity": aText},
	reflect.TypeFor[api.CancelRun](): {"reason": aText},
	reflect.TypeFor[api.CreateKey](): {"name": aName, "scopes": oneOf(perdure.Scopes...)},
	reflect.TypeFor[api.CreateWebhook](): {"url": aURL, "events": {items: perdure.MaxEventNames},
		"format": aFormat},
	reflect.TypeFor[api.ChangeWebhook](): {"url": aURL, "events": {items: perdure.MaxEventNames},
		"format": aFormat},
	reflect.TypeFor[api.ChooseLetters](): {"ids": {items: maxLetters}, "limit": between(1, maxLetters)},
	reflect.TypeFor[api.Retry]():         {"from": aName},
	reflect.TypeFor[api.RetryMany]():     {"run_ids": {items: perdure.MaxList}},
	reflect.TypeFor[api.Replay]():        {"class": shownClass},
	reflect.TypeFor[api.Run](): {
		"class":  shownClass,
		"status": aStatus, "tier": oneOf(perdure.Tiers...),
		"priority": between(-perdure.MaxPriority, perdure.MaxPriority),
		"metadata": {items: perdure.MaxMetadata}, "attempt": atLeast(1),
		"max_attempts": between(1, perdure.MaxAttempts),
	},
	reflect.TypeFor[api.JobStatus]():     {"status": aStatus},
	reflect.TypeFor[api.StartedRun]():    {"status": aStatus},
	reflect.TypeFor[api.Activity]():      {"status": aStatus, "tier": oneOf(perdure.Tiers...)},
	reflect.TypeFor[api.ChildActivity](): {"status": aStatus, "tier": oneOf(perdure.Tiers...)},
	reflect.TypeFor[api.ReplayWait]():    {"type": oneOf(perdure.WaitTypes...)},
	reflect.TypeFor[api.OpenWait]():      {"type": oneOf(perdure.WaitTypes...), "mode": oneOf(perdure.Modes...)},
	reflect.TypeFor[api.LateResult]():    {"state": oneOf(perdure.LateStates...)},
	reflect.TypeFor[api.Delivery]():      {"state": oneOf(perdure.NoteStates...)},
	reflect.TypeFor[api.Webhook](): {"scope": oneOf(perdure.OfTenant, perdure.OfThread, perdure.OfRun),
		"format": aFormat},
}

const (
	// maxPage bounds the entries of a page, and maxEventPage the lines of a page of a log.
	maxPage      = 1000
	maxEventPage = 10_000
	// maxSeq bounds numbers to those that a double represents exactly.
	maxSeq = 1 << 53
	// maxKey bounds the bytes of an Idempotency-Key.
	maxKey = 255
)

// queryBounds has the bounds of query parameters by name, or by route and name where routes differ.
// Other parameters are texts.
var queryBounds = map[string]bound{
	"limit": between(1, maxPage), "after": between(0, maxSeq),
	"last_event_id": between(0, maxSeq), "epoch": between(0, maxSeq),
	"wait": {duration: true}, "timeout": {duration: true}, "events": {boolean: true},
	"all_tenants":             {boolean: true},
	"GET /api/v1/runs status": aStatus, "GET /api/v1/runs state": oneOf(perdure.States...),
	"GET /api/v1/ws status": aStatus, "GET /api/v1/ws state": oneOf(perdure.States...),
	"GET /api/v1/runs/{id}/events limit":           between(1, maxEventPage),
	"GET /api/v1/runs/{id}/journal limit":          between(1, perdure.MaxList),
	"GET /api/v1/runs/{id}/inbox limit":            between(1, perdure.MaxList),
	"GET /api/v1/runs/{id}/messages limit":         between(1, perdure.MaxList),
	"GET /api/v1/dlq limit":                        between(1, maxLetters),
	"GET /api/v1/dlq/causes limit":                 between(1, maxLetters),
	"PUT /api/v1/runs/{id}/artifacts/{name} epoch": between(1, maxSeq),
	"GET /api/v1/approvals state": oneOf(append(slices.Clone(perdure.ApprovalStates),
		perdure.ApprovalAll)...),
	"GET /api/v1/groups state":                   oneOf(groupStates...),
	"GET /api/v1/webhooks/{id}/deliveries state": oneOf(perdure.NoteStates...),
}

var boundCache sync.Map // reflect.Type → map[string]bound

// boundsOf returns the bounds of a struct's fields by their names in JSON, with those of embedded
// structs.
func boundsOf(t reflect.Type) map[string]bound {
	if m, ok := boundCache.Load(t); ok {
		return m.(map[string]bound)
	}
	out := make(map[string]bound)
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && f.Type.Kind() == reflect.Struct {
			for name, b := range boundsOf(f.Type) {
				out[name] = b
			}
		}
	}
	for name, b := range bounds[t] {
		out[name] = b
	}
	boundCache.Store(t, out)
	return out
}

// durationPattern matches durations as they should be written. The server accepts a few more forms.
const durationPattern = `^(never|([0-9]+([.][0-9]*)?(ns|us|µs|ms|s|m|h))+)$`

// describe adds a bound to the schema of its type.
func (b bound) describe(schema map[string]any) map[string]any {
	set := func(name string, n int64, ok bool) {
		if ok {
			schema[name] = n
		}
	}
	switch {
	case b.duration:
		schema["examples"] = []any{"30s", "1h15m"}
	case b.boolean:
		schema["type"] = "boolean"
	case b.least != nil:
		schema["type"] = "integer"
		schema["minimum"] = *b.least
	}
	if b.most != nil {
		schema["maximum"] = *b.most
	}
	if items, ok := schema["items"].(map[string]any); ok && b.enum != nil {
		items["enum"] = b.enum
	} else if b.enum != nil {
		schema["enum"] = b.enum
	}
	set("maxLength", int64(b.length), b.length > 0)
	set("maxItems", int64(b.items), b.items > 0 && schema["type"] == "array")
	set("maxProperties", int64(b.items), b.items > 0 && schema["type"] == "object")
	return schema
}

// maxLetters bounds the dead letters of one call.
const maxLetters = 1000
