package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// Kinds of the runs that a Supervisor executes, unless the options name others.
const (
	Kind       = "supervisor"
	WorkerKind = "supervisor.worker"
)

// Options configure a Supervisor. Model is required, and zero values of the others have defaults.
type Options struct {
	// Model calls the model.
	Model *model.Client
	// System is the system prompt. WorkerSystem is that of workers.
	System, WorkerSystem string
	// Tools are those of the supervisor, beside its own. WorkerTools are those of workers. A worker
	// can't spawn workers.
	Tools, WorkerTools []Tool
	// MCP has servers whose tools supervisor and workers have, too. A run keeps those that there were
	// when it began.
	MCP *mcp.Client

	// ModelLimit is a limit of the tenant that each call of the model takes of, checks of workers aside. An
	// endpoint that answers 429 or 503 with Retry-After closes it for that time, so that no other run asks
	// meanwhile. The limit has to be there: see docs/limits.md.
	ModelLimit Limit

	// MaxTurns limits the calls of the model in one run, checks of workers aside. The default is 50.
	MaxTurns int
	// Window is the size of the model's context, in tokens. A conversation that fills four fifths of
	// it is summarized. The default is 100,000.
	Window int
	// MaxResult limits the bytes of a tool's result that the model sees. The default is 32 KiB.
	MaxResult int
	// Budget limits what a run and its workers may use together. WorkerBudget is the largest share
	// of one worker; the default is a quarter of Budget.
	Budget, WorkerBudget Budget
	// MaxWorkers limits the workers of one run. The default is 20.
	MaxWorkers int
	// MaxMemory limits the bytes that the conversations and workers at work hold together, and
	// MaxTenantMemory those of one tenant. One that has no room waits. The default is no limit.
	MaxMemory, MaxTenantMemory int64

	// WorkerWait is how long a run waits for a child before the model answers without it. The default
	// is a minute.
	WorkerWait time.Duration
	// RoundaboutInterval is the time between two checks of a child that looks stuck. The default is a
	// minute.
	RoundaboutInterval time.Duration
	// ToolTimeout limits a call of a tool, and SuspendTimeout a question to a person. A tool with a
	// longer time of its own has that. The defaults are one minute and ten minutes.
	ToolTimeout, SuspendTimeout time.Duration

	// Kind and WorkerKind name the kinds of runs. The defaults are "supervisor" and
	// "supervisor.worker".
	Kind, WorkerKind string
}

// A Limit names a limit, the key if it has a count of its own for each, and what a call takes of its rate: one
// if Units is zero.
type Limit struct {
	Name  string `toml:"name"`
	Key   string `toml:"key,omitempty"`
	Units int    `toml:"units,omitempty"`
}

// options are those of a step under the limit.
func (l *Limit) options() []agent.StepOption {
	if l.Name == "" {
		return nil
	}
	return []agent.StepOption{agent.Limit(l.Name, l.Key, l.Units)}
}

// closeFor closes the limit if an endpoint wants nobody to ask before a time.
func (l *Limit) closeFor(ctx context.Context, f *failure) {
	refuses := f != nil && (f.Code == model.CodeRateLimited || f.Code == model.CodeUnavailable)
	if l.Name == "" || !refuses || f.RetryAfter <= 0 {
		return
	}
	// The call has failed anyway, and says so. A closure that can't be made changes nothing about that.
	_ = agent.CloseLimit(ctx, l.Name, l.Key, max(f.RetryAfter, time.Second), string(f.Code))
}

// A Supervisor executes runs of two kinds: conversations, and the workers that these spawn.
type Supervisor struct {
	opt    Options
	memory *memory
}

// New returns a supervisor.
func New(opt Options) (*Supervisor, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt.System = cmp.Or(opt.System, defaultSystem)
	opt.WorkerSystem = cmp.Or(opt.WorkerSystem, defaultWorkerSystem)
	opt.MaxTurns = cmp.Or(opt.MaxTurns, 50)
	opt.Window = cmp.Or(opt.Window, 100_000)
	opt.MaxResult = cmp.Or(opt.MaxResult, 32<<10)
	opt.MaxWorkers = cmp.Or(opt.MaxWorkers, 20)
	opt.WorkerWait = cmp.Or(opt.WorkerWait, time.Minute)
	opt.RoundaboutInterval = cmp.Or(opt.RoundaboutInterval, time.Minute)
	opt.ToolTimeout = cmp.Or(opt.ToolTimeout, time.Minute)
	opt.SuspendTimeout = cmp.Or(opt.SuspendTimeout, 10*time.Minute)
	opt.Kind, opt.WorkerKind = cmp.Or(opt.Kind, Kind), cmp.Or(opt.WorkerKind, WorkerKind)
	opt.WorkerBudget.Tokens = cmp.Or(opt.WorkerBudget.Tokens, opt.Budget.Tokens/4)
	opt.WorkerBudget.Cost = cmp.Or(opt.WorkerBudget.Cost, opt.Budget.Cost/4)
	return &Supervisor{opt: opt, memory: newMemory(opt.MaxMemory, opt.MaxTenantMemory)}, nil
}

// Register registers both kinds with a worker, and that of calls of MCP servers.
func (s *Supervisor) Register(w *worker.Worker) {
	worker.Agent(w, s.opt.Kind, s.converse, worker.Kind{Description: "answers on a thread, with tools and workers"})
	worker.Agent(w, s.opt.WorkerKind, s.work, worker.Kind{Description: "does one task for a supervisor"})
	if s.opt.MCP != nil {
		s.opt.MCP.Register(w)
	}
}

const (
	minWindow = 2_000
	minResult = 256
)

var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate checks the options.
func (o *Options) Validate() error {
	if o.Model == nil {
		return errors.New("model: is needed")
	}
	for _, n := range []struct {
		name string
		of   int64
	}{
		{"max_turns", int64(o.MaxTurns)}, {"window", int64(o.Window)}, {"max_result", int64(o.MaxResult)},
		{"max_memory", o.MaxMemory}, {"max_tenant_memory", o.MaxTenantMemory},
		{"max_workers", int64(o.MaxWorkers)}, {"worker_wait", int64(o.WorkerWait)},
		{"roundabout_interval", int64(o.RoundaboutInterval)}, {"tool_timeout", int64(o.ToolTimeout)},
		{"suspend_timeout", int64(o.SuspendTimeout)}, {"budget.tokens", int64(o.Budget.Tokens)},
		{"worker_budget.tokens", int64(o.WorkerBudget.Tokens)},
	} {
		if n.of < 0 {
			return fmt.Errorf("%s: is negative", n.name)
		}
	}
	if m := o.ModelLimit; m != (Limit{}) {
		takes := []perdure.LimitTake{{Name: m.Name, Key: m.Key, Units: m.Units}}
		if err := perdure.CheckTakes("model_limit", takes); err != nil {
			return err
		}
	}
	switch {
	case !(o.Budget.Cost >= 0 && o.WorkerBudget.Cost >= 0):
		return errors.New("budget.cost and worker_budget.cost: are not negative")
	case o.Window != 0 && o.Window < minWindow:
		return fmt.Errorf("window: is %d, and at least %d tokens are needed", o.Window, minWindow)
	case o.MaxResult != 0 && o.MaxResult < minResult || o.MaxResult > maxText:
		return fmt.Errorf("max_result: is %d, and may be %d to %d bytes", o.MaxResult, minResult, maxText)
	}
	for _, kind := range []string{cmp.Or(o.Kind, Kind), cmp.Or(o.WorkerKind, WorkerKind)} {
		if err := perdure.CheckName("kind", kind); err != nil {
			return err
		}
	}
	if err := checkTools("tools", slices.Concat(ownTools, o.Tools)); err != nil {
		return err
	}
	if err := checkTools("worker_tools", o.WorkerTools); err != nil {
		return err
	}
	return checkServers(o.MCP, slices.Concat(ownTools, o.Tools, o.WorkerTools))
}

// checkTools refuses names that are malformed or used twice, and parameters that are no object.
func checkTools(field string, tools []Tool) error {
	seen := make(map[string]bool)
	for _, t := range tools {
		if t == nil {
			return fmt.Errorf("%s: one is nil", field)
		}
		spec := t.Spec()
		var schema map[string]any
		switch {
		case !toolName.MatchString(spec.Name):
			return fmt.Errorf("%s: the name %q is not 1 to 64 letters, digits, - and _", field, spec.Name)
		case seen[spec.Name]:
			return fmt.Errorf("%s: two tools have the name %s", field, spec.Name)
		case len(spec.Parameters) > 0 && (json.Unmarshal(spec.Parameters, &schema) != nil || schema == nil):
			return fmt.Errorf("%s: the parameters of %s are no JSON object", field, spec.Name)
		case spec.Timeout < 0 || spec.SuspendTimeout < 0:
			return fmt.Errorf("%s: a timeout of %s is negative", field, spec.Name)
		}
		seen[spec.Name] = true
	}
	return nil
}

// A Budget limits what a run may use. Zero means no limit.
type Budget struct {
	// Tokens counts input and output.
	Tokens int `json:"tokens,omitempty"`
	// Cost is in the currency of the model's prices.
	Cost float64 `json:"cost,omitempty"`
}

// atMost returns the smaller one of two budgets, each limit by itself. A limit that is not positive is
// none.
func (b Budget) atMost(other Budget) Budget {
	if b.Tokens <= 0 || other.Tokens > 0 && other.Tokens < b.Tokens {
		b.Tokens = max(other.Tokens, 0)
	}
	if b.Cost <= 0 || other.Cost > 0 && other.Cost < b.Cost {
		b.Cost = max(other.Cost, 0)
	}
	return b
}

// usedUp tells whether a usage has reached the budget.
func (b Budget) usedUp(u model.Usage) bool {
	return b.Tokens > 0 && u.Total() >= b.Tokens || b.Cost > 0 && u.Cost >= b.Cost
}

// An Input is the input of a conversation's run. The question itself is in the thread.
type Input struct {
	// Trigger is "chord" for a run that continues after its children.
	Trigger string `json:"trigger,omitempty"`
}

// A Result is the result of a run of either kind.
type Result struct {
	// Answer is the last message, as it is in the thread.
	Answer string `json:"answer"`
	// Ended says why the run ended: see the constants.
	Ended string `json:"ended"`
	// Turns counts the calls of the model, and Usage what they used, workers included.
	Turns int         `json:"turns"`
	Usage model.Usage `json:"usage"`
}

// Values of Result.Ended.
const (
	EndedAnswered  = "answered"
	EndedTurnLimit = "turn_limit"
	EndedBudget    = "budget"
)

// limits are the options that decide what a run does. Each run records them at its beginning, so that
// a change of the configuration does not contradict its journal.
type limits struct {
	MaxTurns     int           `json:"max_turns"`
	Window       int           `json:"window"`
	MaxResult    int           `json:"max_result"`
	MaxWorkers   int           `json:"max_workers"`
	Budget       Budget        `json:"budget"`
	WorkerBudget Budget        `json:"worker_budget"`
	WorkerWait   time.Duration `json:"worker_wait"`
	Interval     time.Duration `json:"interval"`
	ToolTimeout  time.Duration `json:"tool_timeout"`
	Suspend      time.Duration `json:"suspend"`
	// Rules is the version of what a run does between its calls. Runs that began with an earlier
	// release have zero, and go on as their journals say.
	Rules int `json:"rules,omitempty"`
	// Fixed is the size of the system prompt and the tools, in tokens.
	Fixed int `json:"fixed"`
	// MCP are the tools of MCP servers. Note tells the model which servers are not available.
	MCP  []mcp.Tool `json:"mcp,omitempty"`
	Note string     `json:"note,omitempty"`
}

// currentRules are the Rules of new runs. With 1 budgets count the next prompt, a check is one try beside
// the wait, the pause before a retry hears users and children, and a chat message answers a question.
// With 2 a thread is read from its end, and a decision that the server has taken before such a message
// counts.
const currentRules = 2

// limits returns those of the options.
func (o *Options) limits(ctx context.Context) limits {
	l := limits{MaxTurns: o.MaxTurns, Window: o.Window, MaxResult: o.MaxResult, MaxWorkers: o.MaxWorkers,
		Budget: o.Budget, WorkerBudget: o.WorkerBudget, WorkerWait: o.WorkerWait, Interval: o.RoundaboutInterval,
		ToolTimeout: o.ToolTimeout, Suspend: o.SuspendTimeout, Rules: currentRules}
	if o.MCP != nil {
		var down map[string]string
		l.MCP, down = o.MCP.Tools(ctx)
		l.Note = unavailable(down)
	}
	return l
}

// converse answers the last message of the run's thread.
func (s *Supervisor) converse(ctx *agent.Context, _ Input) (Result, error) {
	if ctx.ThreadID() == "" {
		return Result{}, perdure.Permanent(worker.Fail("no_thread", "a conversation needs a thread"))
	}
	held, err := s.hold(ctx)
	if err != nil {
		return Result{}, err
	}
	defer held.end()
	l, err := s.newLoop(ctx, held, s.opt.System, slices.Concat(ownTools, s.opt.Tools), false)
	if err != nil {
		return Result{}, err
	}
	if err := l.readThread(); err != nil {
		return Result{}, err
	}
	held.shrink()
	out, err := l.run()
	if err != nil {
		return out, err
	}
	if live := l.background(); len(live) > 0 {
		return agent.Continue(ctx, out, live...)
	}
	return out, nil
}
