package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// ShellOptions configure the tool shell. The zero value asks a person about every program.
type ShellOptions struct {
	// Allow lists commands, each as a program with its arguments, such as {"df", "-h"}. The program is
	// the name with which it is called. An argument "*" stands for exactly one argument that has no
	// slash and does not begin with a hyphen.
	Allow [][]string
	// Approve says for which programs a person is asked: see the constants. Empty means
	// ApproveUnlisted.
	Approve string
	// Approvers says whose keys decide. Empty means the approvers of the tenant.
	Approvers perdure.ApprovalApprovers
	// Tenant is the only tenant whose conversations have the tool. Empty means all.
	Tenant perdure.TenantID
	// Confine changes a command before it is started, such as to execute it as another user.
	Confine func(*exec.Cmd) error
	// Interpreter allows a command line for sh, with pipes and expansions. A command line is never
	// on the list, as its first word says little about what it does.
	Interpreter bool
	// Dir is the working directory. Empty means that of this process.
	Dir string
	// Env is the environment, as NAME=value. PATH, HOME and LANG are those of this process, and
	// nothing else of its environment is passed on: keys are in there.
	Env []string
	// Timeout limits a program. The supervisor's ToolTimeout counts if it is longer.
	Timeout time.Duration
}

// Values of ShellOptions.Approve.
const (
	ApproveAlways   = "always"   // a person is asked about every program
	ApproveUnlisted = "unlisted" // programs on the list run at once, and a person is asked about others
	ApproveNever    = "never"    // programs on the list run at once, and others are refused
)

// Shell is a tool that executes programs on the worker's machine. It is not among the tools of a
// supervisor unless its options have it. A program is never executed twice.
func Shell(opt ShellOptions) (Tool, error) {
	opt.Approve = cmp.Or(opt.Approve, ApproveUnlisted)
	if !slices.Contains([]string{ApproveAlways, ApproveUnlisted, ApproveNever}, opt.Approve) {
		return nil, fmt.Errorf("shell: approve is %q, and may be always, unlisted or never", opt.Approve)
	}
	if err := perdure.CheckApprovers("approvers", opt.Approvers); err != nil {
		return nil, fmt.Errorf("shell: %w", err)
	}
	for i, entry := range opt.Allow {
		if len(entry) == 0 || entry[0] == "" || entry[0] == anyArgument {
			return nil, fmt.Errorf("shell: allow[%d]: it begins with the name of a program", i)
		}
	}
	for _, e := range opt.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return nil, fmt.Errorf("shell: env: %q is not NAME=value", name)
		}
	}
	return &shell{opt}, nil
}

type shell struct{ opt ShellOptions }

// anyArgument stands for one argument in an entry of the list.
const anyArgument = "*"

// offeredTo tells whether conversations of a tenant have the tool. A worker that serves one tenant does
// not know its name.
func (s *shell) offeredTo(t perdure.TenantID) bool { return s.opt.Tenant == "" || s.opt.Tenant == t }

// A command is the argument of the tool.
type command struct {
	Program string   `json:"program,omitempty"`
	Args    []string `json:"args,omitempty"`
	Command string   `json:"command,omitempty"`
}

func (s *shell) Spec() Spec {
	spec := Spec{Name: "shell", Timeout: s.opt.Timeout,
		Description: "Executes a program, without a shell: no pipes, no expansions. You get its output and status.",
		Parameters: json.RawMessage(`{"type":"object","properties":{"program":{"type":"string"},
			"args":{"type":"array","items":{"type":"string"}}},"required":["program"]}`)}
	if s.opt.Interpreter {
		spec.Description = "Executes a program with arguments, or a command line of sh. You get its output and status."
		spec.Parameters = json.RawMessage(`{"type":"object","properties":{"program":{"type":"string"},
			"args":{"type":"array","items":{"type":"string"}},"command":{"type":"string"}}}`)
	}
	return spec
}

func (s *shell) Start(ctx *agent.Context, call Call) (Pending, error) {
	var in command
	if err := decode(call.Arguments, &in); err != nil {
		return Done("error: " + err.Error()), nil
	}
	allowed, err := s.allowed(in)
	if err != nil {
		return Done("error: " + err.Error()), nil
	}
	var by perdure.ApprovalID
	if !allowed || s.opt.Approve == ApproveAlways {
		var refused string
		by, refused, err = askLeave(ctx, call, s.opt.Approvers, "shell", in, in.String())
		if refused != "" || err != nil {
			return Done(refused), err
		}
	}
	run := &funcTool{s.Spec(), func(ctx context.Context, args json.RawMessage) (string, error) {
		return s.execute(ctx, args, by)
	}}
	return run.Start(ctx, call)
}

// askLeave asks a person whether something may be executed. refused is for the model.
func askLeave(ctx *agent.Context, call Call, approvers perdure.ApprovalApprovers, name string, action any,
	what string) (by perdure.ApprovalID, refused string, err error) {
	verdict, err := agent.Approve(ctx, agent.Approval{Name: name, Action: action, Timeout: call.SuspendTimeout,
		Approvers: approvers, Title: perdure.Excerpt("execute "+what, maxTitle)})
	switch {
	case errors.Is(err, agent.ErrCancelled):
		return "", "", err
	case err != nil: // the arguments are too long to be shown
		return "", "error: " + err.Error(), nil
	case verdict.TimedOut:
		return "", fmt.Sprintf("error: nobody has allowed this within %s, so it was not executed",
			call.SuspendTimeout), nil
	case !verdict.Approved:
		return "", "error: a person has forbidden this, so it was not executed. " + clean(verdict.Comment), nil
	}
	return verdict.ApprovalID, "", nil
}

// allowed tells whether a program is on the list. An error refuses it.
func (s *shell) allowed(in command) (bool, error) {
	switch {
	case in.Command != "" && (in.Program != "" || len(in.Args) > 0):
		return false, errors.New("give a program with args, or a command, and not both")
	case in.Command != "" && !s.opt.Interpreter:
		return false, errors.New("command lines are not allowed here: give a program with args")
	case in.Command == "" && in.Program == "":
		return false, errors.New("there is no program")
	case strings.Contains(in.Program+in.Command+strings.Join(in.Args, ""), "\x00"):
		return false, errors.New("a NUL character can't be in a program or its arguments")
	}
	listed := in.Command == "" && slices.ContainsFunc(s.opt.Allow, in.matches)
	if !listed && s.opt.Approve == ApproveNever {
		var list []string
		for _, entry := range s.opt.Allow {
			list = append(list, strings.Join(entry, " "))
		}
		return false, fmt.Errorf("%s is not on the list of commands: %s", cut(in.String(), maxShown),
			strings.Join(list, ", "))
	}
	return listed, nil
}

// matches tells whether a command is what an entry of the list describes.
func (c command) matches(entry []string) bool {
	if len(entry) != 1+len(c.Args) || entry[0] != c.Program {
		return false
	}
	for i, arg := range c.Args {
		want := entry[1+i]
		if want == arg {
			continue
		}
		if want != anyArgument || arg == "" || strings.HasPrefix(arg, "-") || strings.Contains(arg, "/") {
			return false
		}
	}
	return true
}

func (c command) String() string {
	if c.Command != "" {
		return c.Command
	}
	return strings.Join(append([]string{c.Program}, c.Args...), " ")
}

const (
	// maxOutput limits what is kept of a program's output, in bytes.
	maxOutput = 1 << 20
	// killDelay is how long the output of a program is read after its end. A child of it may keep it
	// open.
	killDelay = 2 * time.Second
)

// mayExecute checks at the place of execution what the conversation has checked before. Neither the
// model nor the journal is trusted: a worker of the tenant may have written it.
func (s *shell) mayExecute(ctx context.Context, in command, by perdure.ApprovalID) error {
	info, ok := worker.Info(ctx)
	if !ok || !s.offeredTo(info.Tenant) {
		return errors.New("there is no tool \"shell\"")
	}
	allowed, err := s.allowed(in)
	if err != nil || allowed && s.opt.Approve != ApproveAlways || s.opt.Approvers != perdure.ApproversPlatform {
		return err
	}
	action, err := perdure.Encode(in)
	if err != nil {
		return err
	}
	return worker.CheckApproval(ctx, by, action)
}

// execute runs a program, within a step. by is the approval for it, if one was needed.
func (s *shell) execute(ctx context.Context, args json.RawMessage, by perdure.ApprovalID) (string, error) {
	var in command
	if err := decode(args, &in); err != nil {
		return "", err
	}
	if err := s.mayExecute(ctx, in, by); err != nil {
		return "", err
	}
	return s.run(ctx, in)
}

// run runs a program that may be executed.
func (s *shell) run(ctx context.Context, in command) (string, error) {
	cmd := exec.CommandContext(ctx, in.Program, in.Args...)
	if in.Command != "" {
		cmd = exec.CommandContext(ctx, "sh", "-c", in.Command)
	}
	cmd.Dir, cmd.WaitDelay = s.opt.Dir, killDelay
	killGroup(cmd)
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Env = append(cmd.Env, s.opt.Env...)
	if s.opt.Confine != nil {
		if err := s.opt.Confine(cmd); err != nil {
			return "", err
		}
	}
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out.String(), context.Cause(ctx)
	case errors.As(err, &exit):
		return fmt.Sprintf("%s\n(%s)", out, exit), nil
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return "", err
	}
	return out.String(), nil
}

// An output keeps the beginning of what is written to it.
type output struct {
	bytes.Buffer
	dropped int
}

func (o *output) Write(b []byte) (int, error) {
	keep := min(len(b), maxOutput-o.Len())
	o.dropped += len(b) - keep
	o.Buffer.Write(b[:keep])
	return len(b), nil
}

func (o *output) String() string {
	if o.dropped == 0 {
		return o.Buffer.String()
	}
	return fmt.Sprintf("%s\n… (%d bytes more were not kept)", o.Buffer.String(), o.dropped)
}
