package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/jsonschema"
	"github.com/perdure/perdure/internal/wire/timer"
)

// A Kind describes a kind to the server's registry of kinds. Submissions and spawns of the kind take
// from it what they do not say. A field that is zero leaves the decision to the server's policy. An
// operator can override each of them. Of several, a field that is set replaces the earlier one.
type Kind struct {
	Description string
	// Timeout is the time that a run has, from its start to its end. The server limits it by class.
	Timeout time.Duration
	// MaxAttempts is the number of attempts in a row that may be lost.
	MaxAttempts int
	// Backoff is the delay of the first retry. It doubles with each further one, up to MaxBackoff.
	Backoff    time.Duration
	MaxBackoff time.Duration
	// NotRetried lists codes of failures that end the run at once; see [Fail].
	NotRetried []perdure.Code
	// HoldTimeout limits how long a run is held because of a defect of its code.
	HoldTimeout time.Duration
	// SpendAttempts makes a defect of the code cost an attempt instead of holding the run.
	SpendAttempts bool
	// Signals has the signals that runs of the kind take, by name. The type of a value gives the JSON
	// Schema: Signals: map[string]any{"answer": Answer{}}. A json.RawMessage is a schema itself. The
	// server refuses a signal that does not fit.
	Signals map[string]any
	// Ignores has the fields of the input that the type of an agent no longer has on purpose. Without it a
	// run whose input has such a field, and that began under a release that read it, is held. A field in a
	// field is "address/street", and one in each element of a list "orders/*/id".
	Ignores []string
}

// maxSchema bounds the bytes of a derived schema. A larger one is not announced.
const maxSchema = 24 << 10

// applyTo sets the fields that the description has.
func (k Kind) applyTo(to *Kind) {
	to.Description = cmp.Or(k.Description, to.Description)
	to.Timeout = cmp.Or(k.Timeout, to.Timeout)
	to.MaxAttempts = cmp.Or(k.MaxAttempts, to.MaxAttempts)
	to.Backoff = cmp.Or(k.Backoff, to.Backoff)
	to.MaxBackoff = cmp.Or(k.MaxBackoff, to.MaxBackoff)
	to.HoldTimeout = cmp.Or(k.HoldTimeout, to.HoldTimeout)
	to.SpendAttempts = to.SpendAttempts || k.SpendAttempts
	if k.NotRetried != nil {
		to.NotRetried = k.NotRetried
	}
	if k.Signals != nil {
		to.Signals = k.Signals
	}
	to.Ignores = append(to.Ignores, k.Ignores...)
}

// ignoresOf returns the fields of the input that the options name.
func ignoresOf(opts []Kind) []string {
	var k Kind
	for _, o := range opts {
		o.applyTo(&k)
	}
	return k.Ignores
}

// define makes the definition of a kind from its options and the types of its function.
func define[In, Out any](class perdure.Class, opts []Kind) (perdure.KindDef, error) {
	var k Kind
	for _, o := range opts {
		o.applyTo(&k)
	}
	def := perdure.KindDef{Class: class, InputSchema: schema[In](), OutputSchema: schema[Out]()}
	def.Description, def.Timeout, def.HoldTimeout = k.Description, perdure.Duration(k.Timeout),
		perdure.Duration(k.HoldTimeout)
	if k.MaxAttempts != 0 || k.Backoff != 0 || k.MaxBackoff != 0 || len(k.NotRetried) > 0 {
		def.Retry = &perdure.KindRetry{MaxAttempts: k.MaxAttempts, Backoff: perdure.Duration(k.Backoff),
			MaxBackoff: perdure.Duration(k.MaxBackoff), NotRetried: slices.Clone(k.NotRetried)}
	}
	if k.SpendAttempts {
		hold := false
		def.HoldDefects = &hold
	}
	for name, of := range k.Signals {
		if def.Signals == nil {
			def.Signals = make(map[string]json.RawMessage, len(k.Signals))
		}
		def.Signals[name] = signalSchema(of)
	}
	return def, def.Validate()
}

// signalSchema gives the schema of a signal. One that can have any value, or is too large, is {}.
func signalSchema(of any) json.RawMessage {
	if s, ok := of.(json.RawMessage); ok {
		return s
	}
	if s := schemaOf(reflect.TypeOf(of)); s != nil {
		return s
	}
	return json.RawMessage("{}")
}

// schema derives the JSON Schema of a type. It is nil for a type that can hold any value.
func schema[T any]() json.RawMessage { return schemaOf(reflect.TypeFor[T]()) }

func schemaOf(t reflect.Type) json.RawMessage {
	if t == nil {
		return nil
	}
	s := jsonschema.Of(t)
	if len(s) == 0 {
		return nil
	}
	b, err := json.Marshal(s)
	if err != nil || len(b) > maxSchema {
		return nil
	}
	return b
}

// announceWait bounds how long polls wait for the announcements.
const announceWait = 30 * time.Second

// announce tells the registry about all kinds. While the server is away it tries again, until ctx
// ends. A server without a registry is not an error.
//
// It calls answered once the server has answered about every kind. Polls wait for that: a run of a
// kind that was not known when it was submitted takes its class from what is announced before its
// first grant. An answer that refuses counts: a server that can't store a kind grants runs all the same.
func (w *Worker) announce(ctx context.Context, answered func()) {
	defer answered()
	kinds := slices.Concat(w.tasks.kinds, w.agents.kinds)
	for _, kind := range kinds {
		in := api.AnnounceKind{KindDef: w.handlers[kind].def, Build: w.opt.Build, AllTenants: w.opt.AllTenants}
		for n := 1; ; n++ {
			_, err := w.calls.AnnounceKind(ctx, kind, in)
			if ctx.Err() != nil {
				return
			}
			if err != nil && client.Transient(err) && client.CodeOf(err) != perdure.CodeQuota {
				if c := client.CodeOf(err); c != perdure.CodeUnavailable && c != perdure.CodeUnknown {
					answered()
				}
				timer.Sleep(ctx, pause(n))
				continue
			}
			switch client.CodeOf(err) {
			case "":
			case perdure.CodeNotFound:
				w.log.Info("the server has no registry of kinds: it is older than this worker")
				return
			case api.CodeUnauthorized, api.CodeForbidden: // the poll is refused as well, and Run returns that
				return
			default:
				w.log.Warn("a kind could not be announced; its defaults do not count", "kind", kind, "error", err)
			}
			break
		}
	}
}
