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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// ShellOptions configure the tool shell. The zero value asks a person about every program.
type ShellOptions struct {
	// Allow lists programs by the name with which they are called, such as "df". A path is a program
	// of its own. Arguments are free, so a program that executes others does not belong here.
	Allow []string
	// Approve says for which programs a person is asked: see the constants. Empty means
	// ApproveUnlisted.
	Approve string
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
	for _, e := range opt.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return nil, fmt.Errorf("shell: env: %q is not NAME=value", name)
		}
	}
	s := &shell{opt: opt}
	s.run = &funcTool{s.Spec(), s.execute}
	return s, nil
}

type shell struct {
	opt ShellOptions
	run *funcTool
}

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
	if allowed && s.opt.Approve != ApproveAlways {
		return s.run.Start(ctx, call)
	}
	if refused, err := askLeave(ctx, call, "shell", in, in.String()); refused != "" || err != nil {
		return Done(refused), err
	}
	return s.run.Start(ctx, call)
}

// askLeave asks a person whether something may be executed. refused is for the model.
func askLeave(ctx *agent.Context, call Call, name string, action any, what string) (refused string, err error) {
	verdict, err := agent.Approve(ctx, agent.Approval{Name: name, Action: action, Timeout: call.SuspendTimeout,
		Title: perdure.Excerpt("execute "+what, maxTitle)})
	switch {
	case errors.Is(err, agent.ErrCancelled):
		return "", err
	case err != nil: // the arguments are too long to be shown
		return "error: " + err.Error(), nil
	case verdict.TimedOut:
		return fmt.Sprintf("error: nobody has allowed this within %s, so it was not executed", call.SuspendTimeout), nil
	case !verdict.Approved:
		return "error: a person has forbidden this, so it was not executed. " + clean(verdict.Comment), nil
	}
	return "", nil
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
	listed := in.Command == "" && slices.Contains(s.opt.Allow, in.Program)
	if !listed && s.opt.Approve == ApproveNever {
		return false, fmt.Errorf("%s is not on the list of programs: %s", filepath.Base(in.String()),
			strings.Join(s.opt.Allow, ", "))
	}
	return listed, nil
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

// execute runs a program, within a step.
func (s *shell) execute(ctx context.Context, args json.RawMessage) (string, error) {
	var in command
	if err := decode(args, &in); err != nil {
		return "", err
	}
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
