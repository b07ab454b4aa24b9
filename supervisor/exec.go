package supervisor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// ExecKind is the kind of runs that are commands. "perdure runner" executes them.
const ExecKind = "exec"

// ExecOptions configure a tool that executes a command, such as an agent on the command line.
type ExecOptions struct {
	Name, Description string
	// Command is the program with its arguments. A word in braces, such as {prompt}, is a parameter of
	// the tool: a text that the model gives. The program itself has none.
	Command []string
	// Engine says what the output means: see docs/processes.md#engines. Empty means generic.
	Engine string
	// Queue is that of the runner. Empty means the default queue.
	Queue string
	// Dir is the folder in which the command starts. Empty means a folder of its own.
	Dir string
	// Env is added to the environment that the runner allows, as NAME=value. Secrets names variables,
	// and the secrets of the runner that they get.
	Env     []string
	Secrets map[string]string
	// Approve says whether a person is asked before: ApproveAlways or ApproveNever. Empty means
	// ApproveAlways.
	Approve string
	// Approvers says whose keys decide. Empty means the approvers of the tenant.
	Approvers perdure.ApprovalApprovers
	// Timeout limits the command. Empty means an hour.
	Timeout time.Duration
}

var (
	placeholder = regexp.MustCompile(`\{[a-z][a-z0-9_]*\}`)
	engineName  = regexp.MustCompile(`^[a-z0-9-]{0,64}$`)
)

// Exec is a tool that executes a command as a run of its own, on the machine of a runner. The run is a
// child: it goes on when this program ends, and if it takes longer than the wait, its result continues
// the conversation. It is never repeated. The model gets what the agent has said last, or the end of the
// output.
func Exec(opt ExecOptions) (Tool, error) {
	opt.Approve, opt.Timeout = cmp.Or(opt.Approve, ApproveAlways), cmp.Or(opt.Timeout, time.Hour)
	t := &execTool{opt: opt}
	for i, arg := range opt.Command {
		for _, name := range placeholder.FindAllString(arg, -1) {
			if i == 0 {
				return nil, errors.New("command: the program can't be a parameter")
			}
			if name = strings.Trim(name, "{}"); !slices.Contains(t.names, name) {
				t.names = append(t.names, name)
			}
		}
	}
	switch {
	case len(opt.Command) == 0 || opt.Command[0] == "":
		return nil, errors.New("command: is needed")
	case strings.Contains(strings.Join(opt.Command, ""), "\x00"):
		return nil, errors.New("command: it can't have a NUL character")
	case !engineName.MatchString(opt.Engine):
		return nil, fmt.Errorf("engine: %q is no name of an engine", opt.Engine)
	case opt.Dir != "" && (!filepath.IsAbs(opt.Dir) || strings.Contains(opt.Dir, "\x00")):
		return nil, errors.New("dir: is no absolute path")
	case opt.Approve != ApproveAlways && opt.Approve != ApproveNever:
		return nil, fmt.Errorf("approve: is %q, and may be always or never", opt.Approve)
	case opt.Timeout < 0:
		return nil, errors.New("timeout: is negative")
	}
	if err := perdure.CheckApprovers("approvers", opt.Approvers); err != nil {
		return nil, err
	}
	if opt.Queue != "" {
		if err := perdure.CheckName("queue", opt.Queue); err != nil {
			return nil, err
		}
	}
	t.env = make(map[string]string)
	for _, e := range opt.Env {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("env: %q is not NAME=value", name)
		}
		t.env[name] = value
	}
	return t, nil
}

type execTool struct {
	opt   ExecOptions
	names []string
	env   map[string]string
}

// A processInput is the input of a run that is a command.
type processInput struct {
	Command []string          `json:"command"`
	Engine  string            `json:"engine,omitempty"`
	Dir     string            `json:"dir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
}

func (t *execTool) Spec() Spec {
	properties := make(map[string]any)
	for _, name := range t.names {
		properties[name] = map[string]string{"type": "string"}
	}
	required := append([]string{}, t.names...)
	schema, _ := json.Marshal(map[string]any{"type": "object", "properties": properties,
		"required": required, "additionalProperties": false}) // texts can be encoded
	return Spec{Name: t.opt.Name, Parameters: schema, Timeout: t.opt.Timeout,
		Description: cmp.Or(t.opt.Description, "Executes "+t.opt.Command[0]+".")}
}

func (t *execTool) Start(ctx *agent.Context, call Call) (Pending, error) {
	in := processInput{Engine: t.opt.Engine, Dir: t.opt.Dir, Env: t.env, Secrets: t.opt.Secrets}
	var err error
	if in.Command, err = t.fill(call.Arguments); err != nil {
		return Done("error: " + err.Error()), nil
	}
	if t.opt.Approve == ApproveAlways {
		_, refused, err := askLeave(ctx, call, t.opt.Approvers, t.opt.Name, in, strings.Join(in.Command, " "))
		if refused != "" || err != nil {
			return Done(refused), err
		}
	}
	return Child(call, t.opt.Name, agent.Spawn[json.RawMessage](ctx, ExecKind, in, agent.Options{OnStall: true,
		Class: perdure.Process, Queue: t.opt.Queue, MaxAttempts: 1, Timeout: t.opt.Timeout})), nil
}

// fill puts arguments into the command. The error is for the model.
func (t *execTool) fill(raw json.RawMessage) ([]string, error) {
	args := make(map[string]string)
	if err := decode(raw, &args); err != nil {
		return nil, err
	}
	for name := range args {
		if !slices.Contains(t.names, name) {
			return nil, fmt.Errorf("the arguments do not fit this tool: there is no %q", name)
		}
	}
	for _, name := range t.names {
		switch value, ok := args[name]; {
		case !ok || strings.TrimSpace(value) == "":
			return nil, fmt.Errorf("the arguments do not fit this tool: %s is missing", name)
		case strings.Contains(value, "\x00"):
			return nil, fmt.Errorf("%s has a NUL character", name)
		}
	}
	out := slices.Clone(t.opt.Command)
	for i, arg := range out {
		out[i] = placeholder.ReplaceAllStringFunc(arg, func(p string) string { return args[strings.Trim(p, "{}")] })
		if strings.HasPrefix(out[i], "-") && !strings.HasPrefix(arg, "-") {
			return nil, errors.New("an argument that begins with a hyphen would be an option of the program")
		}
	}
	return out, nil
}

// processText returns the result of a command for the model.
func processText(raw json.RawMessage) (string, bool) {
	var p struct {
		Engine   string
		ExitCode *int   `json:"exit_code"`
		Text     string `json:"text"`
		Tail     string `json:"output_tail"`
	}
	if json.Unmarshal(raw, &p) != nil || p.Engine == "" || p.ExitCode == nil {
		return "", false
	}
	return orElse(clean(p.Text), orElse(clean(p.Tail), fmt.Sprintf("(no output, exit code %d)", *p.ExitCode))), true
}
