// Package demo is what "perdure demo" runs: the story that Perdure exists for. Somebody asks an agent
// something that takes longer than anyone waits, and the server dies before the agent is done. The answer
// is in the conversation all the same.
//
// # How it works
//
// Run starts a server and an agent as processes, the program itself with other arguments. The agent is a
// supervisor with a scripted model; its worker executes a real df. Run asks "check disk space" and stops
// waiting after three seconds, kills the server with SIGKILL while df runs, and starts it again. At the
// end it reads the conversation, the logs of both runs and the store's invariants, draws a picture and
// compares what happened with what is promised.
//
// # What it is not
//
// It is not a test framework: e2e and the simulator kill processes at random points.
//
// # Where to start reading
//
//   - demo.go: what happens, in play. What is promised, in promises.
//   - agent.go: the agent, as a program of a user would have it.
//   - picture.go: the picture, drawn from instants alone.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/cmd/internal/child"
	"github.com/perdure/perdure/cmd/internal/paint"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	question   = "check disk space"
	limit      = 60 * time.Second       // of the whole demo, for a very busy machine
	callerWait = 3 * time.Second        // how long the caller waits
	modelTakes = 300 * time.Millisecond // until the model answers
	diskTakes  = 4 * time.Second        // until df is executed
	downtime   = 900 * time.Millisecond // how long the server is away after df has ended
)

// An observation is everything that the demo has seen.
type observation struct {
	begin perdure.Instant // of the demo
	// tell prints an event.
	tell func(at perdure.Instant, who, text string)

	Servers [2]life
	// Wait is the time for which the caller waited, and Look the one in which df was executed.
	Wait, Look life
	// Deferred is the answer that the caller got.
	Deferred *api.ChatAnswer
	// Back is when the caller asks for the conversation again.
	Back perdure.Instant
	// Chat is the run that answers, and Worker the one that it delegated to, with their logs.
	Chat, Worker             *api.Run
	ChatEvents, WorkerEvents []api.Event
	// Messages is the conversation.
	Messages []api.Message
	// Executed counts the executions of df.
	Executed int
	// Checked counts the invariants, and Broken the rows that violate one.
	Checked int
	Broken  int
}

// A life is the time from the start of something to its end. PID is the process, if it is one.
type life struct {
	PID      int
	Up, Down perdure.Instant
}

// Run runs the demo. It prints what happens as it happens or, with a printJSON, everything at the
// end.
func Run(ctx context.Context, stdout io.Writer, printJSON func(any) error) error {
	asJSON := printJSON != nil
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "perdure-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	p := paint.Painter{On: !asJSON && paint.Colourful(stdout)}
	s := &observation{begin: now(), tell: func(perdure.Instant, string, string) {}}
	if !asJSON {
		s.tell = func(at perdure.Instant, by, text string) {
			fmt.Fprintf(stdout, "  %s  %s %s\n", p.Dim(fmt.Sprintf("%5.2f s", at.Sub(s.begin).Seconds())),
				who(p, by), text)
		}
		fmt.Fprintf(stdout, "\n%s\n\n  You ask an agent to %s, which takes longer than you wait. Meanwhile the\n"+
			"  server is killed.\n\n", p.Bold("Timeouts stop waiting, not working"), question)
	}
	if err := s.play(ctx, dir); err != nil {
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fmt.Errorf("it was not done after %s: %w", limit, err)
		case ctx.Err() != nil:
			return errors.New("stopped before its end")
		}
		return err
	}
	if asJSON {
		err = printJSON(s.facts())
	} else {
		fmt.Fprintf(stdout, "\n%s\n%s\n%s%s", s.conversation(p), s.picture(p), s.verdict(p), next(p))
	}
	return errors.Join(err, s.verify())
}

func now() perdure.Instant { return perdure.At(time.Now()) }

// play makes everything happen that the demo shows.
func (s *observation) play(ctx context.Context, dir string) error {
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	server, err := s.startServer(ctx, 0, addr, data)
	if err != nil {
		return err
	}
	defer func() { server.Kill() }()
	key, err := os.ReadFile(filepath.Join(data, embedded.KeyFile))
	if err != nil {
		return err
	}
	env := []string{"PERDURE_URL=http://" + addr, "PERDURE_KEY=" + strings.TrimSpace(string(key))}
	c := client.New("http://"+addr, strings.TrimSpace(string(key)), client.Options{})
	defer c.Close()
	agent, err := child.Start(ctx, "agent", env, "demo-agent", dir)
	if err != nil {
		return err
	}
	defer func() { agent.Kill() }()
	up, err := await(ctx, agent, reportUp)
	if err != nil {
		return err
	}
	s.tell(up, "agent", fmt.Sprintf("is up: process %d, with a scripted model that needs no key",
		agent.Cmd.Process.Pid))

	s.Wait.Up = now()
	s.tell(s.Wait.Up, "you", fmt.Sprintf("%q, and wait %s at most", question, seconds(callerWait)))
	asked := make(chan error, 1)
	go func() (err error) {
		defer func() { asked <- err }()
		s.Deferred, err = c.Chat(ctx, api.Chat{Message: client.JSON(question), Wait: perdure.Duration(callerWait)})
		return err
	}()
	if s.Look.Up, err = await(ctx, agent, reportBegan); err != nil {
		return err
	}
	s.tell(s.Look.Up, "agent", "has started a worker, and the worker looks at the disk, which takes "+
		seconds(diskTakes))
	if err := <-asked; err != nil {
		return err
	}
	s.Wait.Down = now()
	s.tell(s.Wait.Down, "you", fmt.Sprintf("are told: %s", firstSentence(s.Deferred.Message)))

	timer.Sleep(ctx, modelTakes)
	s.Servers[0].Down = now()
	server.Kill()
	s.tell(s.Servers[0].Down, "demo",
		fmt.Sprintf("kill -9 %d: the server is gone, while the worker waits for the disk", s.Servers[0].PID))
	if s.Look.Down, err = await(ctx, agent, reportDone); err != nil {
		return err
	}
	s.tell(s.Look.Down, "agent", "df has ended, and no server answers: keeps the result, and tries again")
	timer.Sleep(ctx, downtime)
	if server, err = s.startServer(ctx, 1, addr, data); err != nil {
		return err
	}
	s.Back = now()
	s.tell(s.Back, "you", "come back to the conversation")
	run, deferred, err := c.Join(ctx, s.Deferred.RunID, limit)
	if err == nil && deferred {
		err = errors.New("the agent did not end")
	}
	if err != nil {
		return err
	}
	s.Chat = run
	s.Servers[1].Down = now()
	s.tell(s.Servers[1].Down, "you", "have the answer")
	return s.collect(ctx, c, dir)
}

// collect reads the conversation, the logs, the invariants and the effects at the end.
func (s *observation) collect(ctx context.Context, c *client.Client, dir string) error {
	page, err := c.Messages(ctx, s.Deferred.ThreadID, 0)
	if err != nil {
		return err
	}
	s.Messages = page.Messages
	tree, err := c.Tree(ctx, s.Chat.RunID, "")
	if err != nil {
		return err
	}
	for i := range tree.Runs {
		if tree.Runs[i].ParentRunID == s.Chat.RunID {
			s.Worker = &tree.Runs[i]
		}
	}
	if s.Worker == nil {
		return errors.New("the agent has started no worker")
	}
	if s.ChatEvents, err = log(ctx, c, s.Chat.RunID); err != nil {
		return err
	}
	if s.WorkerEvents, err = log(ctx, c, s.Worker.RunID); err != nil {
		return err
	}
	check, err := admin.New(c).Invariants(ctx)
	if err != nil {
		return err
	}
	s.Checked, s.Broken = check.Checked, len(check.Violations)
	text, err := os.ReadFile(filepath.Join(dir, "effects.txt"))
	s.Executed = strings.Count(string(text), "\n")
	return err
}

// log reads the log of a run.
func log(ctx context.Context, c *client.Client, id perdure.RunID) (lines []api.Event, err error) {
	for e, err := range c.Events(ctx, id, 0) {
		if err != nil {
			return nil, err
		}
		lines = append(lines, e)
	}
	return lines, nil
}

// A promise is what the demo shows, and whether it was kept.
type promise struct {
	Kept bool   `json:"kept"`
	Text string `json:"text"`
}

// promises compares what happened with what is promised.
func (s *observation) promises() []promise {
	deferral, answer := false, false
	for _, m := range s.Messages {
		deferral = deferral || m.Notice()
		answer = answer || m.Role == perdure.RoleAssistant && strings.Contains(text(m.Content), "Filesystem")
	}
	return []promise{
		{s.Deferred.Status == "deferred" && s.Chat.State == perdure.Completed,
			fmt.Sprintf("you stopped waiting after %s, and the agent went on: it is %s",
				seconds(callerWait), s.Chat.State)},
		{s.Chat.Attempt == 1 && s.Worker.Attempt == 1,
			fmt.Sprintf("the server's death cost nobody an attempt: the agent is at %d, its worker at %d",
				s.Chat.Attempt, s.Worker.Attempt)},
		{s.Executed == 1, "df was executed " + times(s.Executed)},
		{deferral, "the conversation says that the answer would come later"},
		{answer, "the conversation has the answer, with what df printed"},
		{s.Broken == 0, fmt.Sprintf("%d invariants checked over the whole store, %d rows break one", s.Checked,
			s.Broken)},
	}
}

// verify returns an error for every promise that was not kept.
func (s *observation) verify() error {
	var errs []error
	for _, p := range s.promises() {
		if !p.Kept {
			errs = append(errs, fmt.Errorf("not kept: %s", p.Text))
		}
	}
	return errors.Join(errs...)
}

// facts returns the observation for programs.
func (s *observation) facts() map[string]any {
	return map[string]any{
		"thread_id": s.Deferred.ThreadID, "run_id": s.Chat.RunID, "state": s.Chat.State, "attempts": s.Chat.Attempt,
		"worker_run_id": s.Worker.RunID, "worker_attempts": s.Worker.Attempt,
		"waited_ms":     s.Wait.Down.Sub(s.Wait.Up).Milliseconds(),
		"killed":        map[string]any{"what": "server", "signal": "SIGKILL", "at": s.Servers[0].Down},
		"df_executions": s.Executed,
		"messages":      s.Messages,
		"invariants":    map[string]int{"checked": s.Checked, "broken_rows": s.Broken},
		"promises":      s.promises(),
		"took_ms":       s.Servers[1].Down.Sub(s.begin).Milliseconds(),
	}
}

// firstSentence returns the first sentence of a text.
func firstSentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".") + "."
}

// text returns the text of a message's content.
func text(content json.RawMessage) string {
	var plain string
	if json.Unmarshal(content, &plain) == nil {
		return plain
	}
	var object struct {
		Content string `json:"content"`
		Text    string `json:"text"`
	}
	if json.Unmarshal(content, &object) != nil {
		return string(content)
	}
	return object.Content + object.Text
}

func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

// freeAddress finds a port that stays free while the server is away. It is below the range from
// which the system assigns ports.
func freeAddress() (string, error) {
	var err error
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}

// startServer starts "perdure serve" and returns when it serves.
func (s *observation) startServer(ctx context.Context, n int, addr, data string) (*child.Process, error) {
	p, err := child.Start(ctx, "server", nil, "serve", "--listen", addr, "--data", data, "--log-level", "error")
	if err != nil {
		return nil, err
	}
	if !p.Out.Scan() { // the server prints its address
		return nil, p.Gone(ctx)
	}
	s.Servers[n] = life{PID: p.Cmd.Process.Pid, Up: now()}
	what := "is up: process %d, a new SQLite file"
	if n > 0 {
		what = "is up again: process %d, the same file"
	}
	s.tell(s.Servers[n].Up, "server", fmt.Sprintf(what, p.Cmd.Process.Pid))
	return p, nil
}

// await reads the reports of the agent's process up to a certain one, and returns its instant.
func await(ctx context.Context, p *child.Process, what string) (perdure.Instant, error) {
	for {
		var r report
		if !p.Out.Scan() {
			return 0, p.Gone(ctx)
		}
		if err := json.Unmarshal(p.Out.Bytes(), &r); err != nil || r.What == what {
			return r.At, err
		}
	}
}
