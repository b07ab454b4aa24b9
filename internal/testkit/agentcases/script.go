package agentcases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A script is an agent in words, which it executes in their order. Its result has the value of each:
//
//	a             the step a, with one effect
//	a+            the same with an undo
//	a~            the same with other options: a timeout and retries
//	a%            the same under the limit "narrow"
//	try:a         a step that fails for good, and the agent goes on
//	paragraph:x   a step "paragraph" about x, without saying so; about:x says so with For
//	measure:T     a step whose result has the type T
//	wait, begin   the signals "go on" and "begin"
//	signal:n:T    a signal n, read as a T; any if there is none
//	sleep:1ms     a sleep
//	approve:x     an approval of the action x, which nobody answers
//	callback:n    a callback that nobody answers
//	child:k:x:T   a child of the kind k with the input x, joined, its result read as a T
//	spawn:k:x     a child that is not joined yet
//	all, settled, select, selectok, first:2, race    join the children of spawn
//	map:k:x,y     a Map of a kind over items; par:n:x,y a Parallel
//	uuid:n, now:n, history, newest
//	say:x         a Message, a line and a Delta; emit:x and delta:x alone
//	(n … )        a saga; [n … ] a branch, joined at once; fail: an error
//	?n … / … ;    a Version: the new way, and the old one
//	removed:n     Removed
type script struct {
	w     *World
	ctx   *agent.Context
	rest  []string
	out   []string
	given []*agent.Future[string]
}

// A World has the effects of the runs of scripts.
type World struct {
	mu      sync.Mutex
	effects map[perdure.RunID][]string
	// names has the times and ids that a run was given, by value, with the name under which it came first.
	names map[string]string
	uses  map[string]int
	// Noted is called with each effect, if it is set: a worker that is a process of its own writes them down.
	Noted func(run perdure.RunID, what string)
}

// NewWorld returns a world without effects.
func NewWorld() *World {
	return &World{effects: map[perdure.RunID][]string{}, names: map[string]string{}, uses: map[string]int{}}
}

// Did notes an effect of a run.
func (w *World) Did(run perdure.RunID, what string) {
	if w.Noted != nil {
		w.Noted(run, what)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.effects[run] = append(w.effects[run], what)
}

// Effects returns the effects of a run, in their order.
func (w *World) Effects(run perdure.RunID) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.effects[run])
}

// nameOf returns the name under which a run was given a value first, with a number.
func (w *World) nameOf(run perdure.RunID, name, value string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(run) + " " + value
	if w.names[key] == "" {
		w.uses[string(run)+" "+name]++
		w.names[key] = fmt.Sprint(name, w.uses[string(run)+" "+name])
	}
	return w.names[key]
}

// A kid is the input of a child.
type kid struct {
	Of perdure.RunID
	In string
}

// Children registers the kinds of children: one, two and three return their name and input, priced an
// object, and text a text.
func (w *World) Children(wk *worker.Worker) {
	for _, kind := range []string{"one", "two", "three"} {
		worker.Handle(wk, kind, func(_ context.Context, in kid) (string, error) {
			w.Did(in.Of, kind+in.In)
			return kind + in.In, nil
		})
	}
	worker.Handle(wk, "priced", func(_ context.Context, in kid) (priced, error) {
		w.Did(in.Of, "priced")
		return priced{7, 1}, nil
	})
}

// Register registers an agent that executes a script. The name of a type is that of its input, which the
// result begins with, or empty.
func (w *World) Register(wk *worker.Worker, kind, words, input string) {
	switch input {
	case "":
		registerScript[any](w, wk, kind, words, false)
	case "order":
		registerScript[order](w, wk, kind, words, true)
	case "moved":
		registerScript[moved](w, wk, kind, words, true)
	case "moved ignores":
		registerScript[moved](w, wk, kind, words, true, worker.Kind{Ignores: []string{"City"}})
	case "longer":
		registerScript[longer](w, wk, kind, words, true)
	case "retyped":
		registerScript[retyped](w, wk, kind, words, true)
	case "text":
		registerScript[string](w, wk, kind, words, true)
	case "map":
		registerScript[map[string]string](w, wk, kind, words, true)
	default:
		panic("agentcases: no input of the type " + input)
	}
}

func registerScript[In any](w *World, wk *worker.Worker, kind, words string, tells bool, opts ...worker.Kind) {
	worker.Agent(wk, kind, func(ctx *agent.Context, in In) (string, error) {
		s := &script{w: w, ctx: ctx, rest: strings.Fields(words)}
		if tells {
			s.out = append(s.out, fmt.Sprint(in))
		}
		if err := s.play(); err != nil {
			return "", err
		}
		return strings.Join(s.out, " "), nil
	}, opts...)
}

// Types of inputs and results, before and after an edit.
type (
	order   struct{ City, Street string }
	moved   struct{ Town, Street string }
	retyped struct{ City, Street int }
	longer  struct{ City, Street, Note string }

	priced  struct{ Amount, Tax int }
	renamed struct{ Sum, Tax int }
	lost    struct{ Amount int }
	gained  struct {
		Amount, Tax int
		Currency    string
	}
)

// play executes words until the end, or until the block that it is in ends.
func (s *script) play() error {
	for len(s.rest) > 0 {
		word := s.rest[0]
		s.rest = s.rest[1:]
		switch word {
		case ")", "]", ";", "/":
			return nil
		}
		if err := s.word(word); err != nil {
			return err
		}
	}
	return nil
}

// leaveOut leaves out the words of a block.
func (s *script) leaveOut() {
	for depth := 0; len(s.rest) > 0; {
		word := s.rest[0]
		s.rest = s.rest[1:]
		switch {
		case strings.ContainsAny(word[:1], "([?"):
			depth++
		case word == ")" || word == "]" || word == ";":
			if depth--; depth < 0 {
				return
			}
		case word == "/" && depth == 0:
			return
		}
	}
}

func (s *script) say(v any) { s.out = append(s.out, fmt.Sprint(v)) }

// part returns a part of a word, or nothing.
func part(parts []string, n int) string {
	if n < len(parts) {
		return parts[n]
	}
	return ""
}

func (s *script) word(word string) error {
	ctx, run := s.ctx, s.ctx.RunID()
	parts := strings.Split(word, ":")
	name := part(parts, 1)
	switch parts[0] {
	case "wait":
		_, err := agent.Signal[any](ctx, "go on", time.Hour)
		return err
	case "begin":
		_, err := agent.Signal[any](ctx, "begin", time.Hour)
		return err
	case "signal":
		return s.signal(name, part(parts, 2))
	case "sleep":
		d, err := time.ParseDuration(name)
		return errors.Join(err, agent.Sleep(ctx, d))
	case "approve":
		v, err := agent.Approve(ctx, agent.Approval{Title: "?", Action: name, Timeout: -1})
		s.say(fmt.Sprint(name, "=", v.Approved))
		return err
	case "callback":
		_, err := agent.Callback[int](ctx, name, -1).Join(ctx)
		if errors.Is(err, agent.ErrTimeout) {
			s.say(name + " is late")
			return nil
		}
		return err
	case "child":
		return s.child(name, part(parts, 2), part(parts, 3))
	case "spawn":
		s.given = append(s.given, agent.Spawn[string](ctx, name, kid{run, part(parts, 2)}))
		return nil
	case "all", "settled", "select", "selectok", "first", "race":
		return s.join(parts[0], name)
	case "map":
		var items []kid
		for _, x := range strings.Split(part(parts, 2), ",") {
			items = append(items, kid{run, x})
		}
		got, err := agent.Map[string](ctx, name, items)
		s.say(strings.Join(got.Results, " "))
		return err
	case "par":
		got, err := agent.Parallel(ctx, name, strings.Split(part(parts, 2), ","),
			func(_ context.Context, x string) (string, error) {
				s.w.Did(run, name+" "+x)
				return x, nil
			}, agent.MapOptions{Limit: 1})
		s.say(strings.Join(got.Results, " "))
		return err
	case "uuid":
		s.say(name + "=" + s.w.nameOf(run, name, agent.UUID(ctx, name)))
		return nil
	case "now":
		s.say(name + "=" + s.w.nameOf(run, name, agent.Now(ctx, name).String()))
		return nil
	case "history":
		got, err := ctx.History()
		s.say(fmt.Sprint(len(got), " messages"))
		return err
	case "newest":
		n := 0
		for _, err := range ctx.NewestMessages(0) {
			if err != nil {
				return err
			}
			n++
		}
		s.say(fmt.Sprint(n, " newest"))
		return nil
	case "say":
		return errors.Join(agent.Message(ctx, perdure.RoleAssistant, name), agent.Emit(ctx, "x:line", name),
			agent.Delta(ctx, name+" "))
	case "emit":
		return agent.Emit(ctx, "x:line", name)
	case "delta":
		return agent.Delta(ctx, name+" ")
	case "removed":
		agent.Removed(ctx, strings.Replace(name, "#", ":", 1))
		return nil
	case "fail":
		return errors.New("a bug")
	case "measure":
		return s.measure(name)
	}
	return s.block(word, parts)
}

// block executes the words that have others in them, and steps.
func (s *script) block(word string, parts []string) error {
	ctx, name := s.ctx, word[1:]
	switch word[0] {
	case '(':
		return agent.Saga(ctx, name, s.play)
	case '[':
		b := agent.Go(ctx, name, func(inner *agent.Context) error {
			s.ctx = inner
			defer func() { s.ctx = ctx }()
			return s.play()
		})
		return b.Join(ctx)
	case '?':
		if agent.Version(ctx, name, 1) < 1 {
			s.leaveOut()
			return s.play()
		}
		if err := s.play(); err != nil {
			return err
		}
		s.leaveOut()
		return nil
	}
	return s.step(word, parts)
}

func (s *script) step(word string, parts []string) error {
	run := s.ctx.RunID()
	name, about := word, part(parts, 1)
	var opts []agent.StepOption
	switch {
	case parts[0] == "try":
		_, err := agent.Step(s.ctx, about, func(context.Context) (int, error) {
			s.w.Did(run, about)
			return 0, perdure.Permanent(errors.New("no " + about))
		})
		if err == nil {
			return errors.New(about + " did not fail")
		}
		s.say(err)
		return nil
	case parts[0] == "about":
		name, opts = "paragraph", append(opts, agent.For(about))
	case parts[0] == "paragraph":
		name = "paragraph"
	case strings.HasSuffix(word, "+"):
		name = strings.TrimSuffix(word, "+")
		opts = append(opts, agent.Undo(func(_ context.Context, of string) error {
			s.w.Did(run, "undo "+of)
			return nil
		}))
	case strings.HasSuffix(word, "~"):
		name = strings.TrimSuffix(word, "~")
		opts = append(opts, agent.Timeout(time.Minute), agent.Retry{Attempts: 4})
	case strings.HasSuffix(word, "%"):
		name = strings.TrimSuffix(word, "%")
		opts = append(opts, agent.Limit("narrow", "", 0))
	}
	got, err := agent.Step(s.ctx, name, func(context.Context) (string, error) {
		did := strings.TrimSpace(name + " " + about)
		s.w.Did(run, did)
		return did, nil
	}, opts...)
	if err == nil {
		if about != "" {
			got = about + "=" + got
		}
		s.say(got)
	}
	return err
}

func (s *script) signal(name, as string) error {
	switch as {
	case "int":
		return take[int](s, name)
	case "string":
		return take[string](s, name)
	case "lost":
		return take[lost](s, name)
	case "priced":
		return take[priced](s, name)
	}
	return take[any](s, name)
}

func take[T any](s *script, name string) error {
	v, err := agent.Signal[T](s.ctx, name, time.Hour)
	if err == nil {
		s.say(fmt.Sprintf("%s=%+v", name, v))
	}
	return err
}

func (s *script) child(kind, in, as string) error {
	switch as {
	case "int":
		return joinChild[int](s, kind, in)
	case "lost":
		return joinChild[lost](s, kind, in)
	case "priced":
		return joinChild[priced](s, kind, in)
	case "timeout":
		return joinChild[string](s, kind, in, agent.Timeout(time.Hour))
	}
	return joinChild[string](s, kind, in)
}

func joinChild[T any](s *script, kind, in string, opts ...agent.ChildOption) error {
	v, err := agent.Spawn[T](s.ctx, kind, kid{s.ctx.RunID(), in}, opts...).Join(s.ctx)
	if err == nil {
		s.say(fmt.Sprintf("%+v", v))
	}
	return err
}

// join joins the children that were spawned.
func (s *script) join(how, k string) error {
	fs := s.given
	switch how {
	case "all":
		got, err := agent.JoinAll(s.ctx, fs...)
		s.say(strings.Join(got, " "))
		return err
	case "settled":
		got, err := agent.JoinAllSettled(s.ctx, fs...)
		s.say(strings.Join(got.Results, " "))
		return err
	case "select":
		n, err := agent.Select(s.ctx, agent.Awaitables(fs...)...)
		if err != nil {
			return err
		}
		v, err := fs[n].Result()
		s.say(v)
		return err
	case "selectok":
		got, err := agent.SelectOK(s.ctx, fs...)
		s.say(got.Value)
		return err
	case "race":
		got, err := agent.Race(s.ctx, time.Hour, fs...)
		s.say(got.Value)
		return err
	}
	n := int(k[0] - '0')
	got, err := agent.FirstOK(s.ctx, n, fs...)
	s.say(fmt.Sprint("the first ", len(got.Values)))
	return err
}

// measure executes a step with a result of a type.
func (s *script) measure(as string) error {
	switch as {
	case "priced":
		return measure(s, priced{7, 1})
	case "renamed":
		return measure(s, renamed{7, 1})
	case "lost":
		return measure(s, lost{7})
	case "pointer":
		return measure(s, &priced{7, 1})
	case "gained":
		return measure(s, gained{Amount: 7, Tax: 1})
	case "string":
		return measure(s, "abcd")
	case "int":
		return measure(s, 7)
	case "float":
		return measure(s, 7.0)
	case "bytes":
		return measure(s, []byte("hi"))
	case "ints":
		return measure(s, []int{7, 8, 9})
	case "array":
		return measure(s, [2]int{7, 8})
	case "map":
		return measure(s, map[string]int{"Amount": 7, "Tax": 1})
	case "any":
		return measure[any](s, map[string]int{"Amount": 7, "Tax": 1})
	case "raw":
		return measure(s, json.RawMessage(`{"Amount":7,"Tax":1}`))
	case "null":
		return measure[*priced](s, nil)
	}
	panic("agentcases: no result of the type " + as)
}

func measure[T any](s *script, v T) error {
	got, err := agent.Step(s.ctx, "measure", func(context.Context) (T, error) {
		s.w.Did(s.ctx.RunID(), "measure")
		return v, nil
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(got)
	s.say(string(text))
	return err
}
