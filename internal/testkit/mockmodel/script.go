package mockmodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/perdure/perdure"
)

// Limits of a script.
const (
	maxScript = 4 << 20        // bytes of the file
	maxRules  = 1000           // rules of a script
	maxRepeat = 10_000_000     // repetitions of a text
	maxDelay  = 24 * time.Hour // of a delay
	maxPieces = 1 << 20        // characters of a piece
	defaultID = "mock"         // the model's name, if the script has none
)

// A Script says how a model answers.
type Script struct {
	// Models are the names that the list of models has. Requests may name others.
	Models []string `json:"models"`
	// Key is the key that requests need. Empty means that any will do, and none.
	Key string `json:"key"`
	// Context is the size of the model's context, in tokens. A longer request is refused. Zero means
	// that there is no limit.
	Context int `json:"context"`
	// Lenient turns the check of conversations off.
	Lenient bool   `json:"lenient"`
	Rules   []Rule `json:"rule"`
}

// A Rule is an answer, and the requests that get it.
type Rule struct {
	Name  string `json:"name"`
	Match Match  `json:"match"`
	// Times is how often the rule may be used. Zero means without limit.
	Times  int    `json:"times"`
	Answer Answer `json:"answer"`

	regexp *regexp.Regexp
}

// A Match has the conditions of a rule. All that are set have to be true.
type Match struct {
	// Turn is the number of the answer in the conversation, counted from 1.
	Turn int `json:"turn"`
	// Step is the number of the answer since the last message of the user, counted from 1.
	Step int `json:"step"`
	// Last is a part of the last message.
	Last string `json:"last"`
	// Regexp matches the last message. An answer has its groups as {{1}}, {{2}} and so on.
	Regexp string `json:"regexp"`
	// Role is that of the last message.
	Role string `json:"role"`
	// Tool is the name of the tool whose result the last message is.
	Tool string `json:"tool"`
	// ToolResult is a part of the last message, which is the result of a tool.
	ToolResult string `json:"tool_result"`
	// Offers is the name of a tool that the request offers.
	Offers string `json:"offers"`
	// System is a part of a system message.
	System string `json:"system"`
	Model  string `json:"model"`
	Key    string `json:"key"`
}

// An Answer is what the model says, and how.
type Answer struct {
	// Text may have {{last}} for the last message, {{user}} for the last one of the user, and {{1}}
	// for a group of the rule's regexp. So may arguments of calls.
	Text string `json:"text"`
	// Repeat says how many times the text is sent. Zero means once.
	Repeat    int    `json:"repeat"`
	Reasoning string `json:"reasoning"`
	ToolCalls []Call `json:"tool_calls"`
	// Finish is the finish_reason, if it is not the usual one.
	Finish string `json:"finish"`
	// Usage is the usage, if it is not the usual one.
	Usage *Usage `json:"usage"`

	// Pieces is the number of characters of a piece of text or arguments. Zero means a word.
	Pieces int `json:"pieces"`
	// FirstToken is the delay of the first piece, and Between that of each other one.
	FirstToken perdure.Duration `json:"first_token"`
	Between    perdure.Duration `json:"between"`

	// Status refuses the request, with Body or with an ordinary error of that status.
	Status     int               `json:"status"`
	Body       string            `json:"body"`
	RetryAfter string            `json:"retry_after"`
	Header     map[string]string `json:"header"`

	// Fault is what happens after FaultAfter pieces: see the constants.
	Fault      string `json:"fault"`
	FaultAfter int    `json:"fault_after"`
	// Error is the error of the fault "error".
	Error any `json:"error"`
	// Quirks are deviations of providers: see the constants.
	Quirks []string `json:"quirks"`
}

// A Call is a call of a tool.
type Call struct {
	Name string `json:"name"`
	// Arguments is an object, or a text that is sent as it is, valid or not.
	Arguments any    `json:"arguments"`
	ID        string `json:"id"`
}

// Usage counts tokens.
type Usage struct {
	Prompt     int `json:"prompt"`
	Completion int `json:"completion"`
}

// Faults.
const (
	FaultHang    = "hang"    // not even a status comes, until the caller leaves
	FaultSilence = "silence" // nothing more comes, until the caller leaves
	FaultCut     = "cut"     // the connection breaks
	FaultClose   = "close"   // the stream ends in order, without a finish_reason
	FaultError   = "error"   // an error comes as a part of the stream
	FaultGarbage = "garbage" // a frame comes that is no JSON, and the stream ends
)

// Quirks.
const (
	QuirkComments   = "comments"    // a comment comes before each piece, as OpenRouter sends them
	QuirkCRLF       = "crlf"        // lines end with CRLF
	QuirkNoDone     = "no-done"     // the stream ends without [DONE]
	QuirkNoFinish   = "no-finish"   // there is no finish_reason
	QuirkNoUsage    = "no-usage"    // there is no usage
	QuirkNoIndex    = "no-index"    // calls have no index
	QuirkIndexZero  = "index-zero"  // calls have the index 0, as Ollama sends them
	QuirkNoID       = "no-id"       // calls have no id
	QuirkWholeCalls = "whole-calls" // a call comes in one piece
	QuirkAtOnce     = "at-once"     // all calls come in one piece
	QuirkInterleave = "interleave"  // pieces of several calls alternate
	QuirkNoStream   = "no-stream"   // a stream was requested, and the answer is one JSON value
	QuirkPlainType  = "plain-type"  // the Content-Type is text/plain
)

var (
	faults = []string{"", FaultHang, FaultSilence, FaultCut, FaultClose, FaultError, FaultGarbage}
	quirks = []string{QuirkComments, QuirkCRLF, QuirkNoDone, QuirkNoFinish, QuirkNoUsage, QuirkNoIndex, QuirkIndexZero,
		QuirkNoID, QuirkWholeCalls, QuirkAtOnce, QuirkInterleave, QuirkNoStream, QuirkPlainType}
)

// Echo is the script that is used without one: it repeats what the user says.
func Echo() Script {
	return Script{Rules: []Rule{{Name: "echo", Answer: Answer{Text: "You said: {{user}}"}}}}
}

// Load reads a script from a file: JSON if its name ends with .json, and otherwise TOML.
func Load(path string) (Script, error) {
	f, err := os.Open(path)
	if err != nil {
		return Script{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Script{}, err
	}
	if info.Size() > maxScript {
		return Script{}, fmt.Errorf("%s has %d bytes, and a script has at most %d", path, info.Size(), maxScript)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Script{}, err
	}
	parse := ParseTOML
	if strings.EqualFold(filepath.Ext(path), ".json") {
		parse = ParseJSON
	}
	s, err := parse(text)
	if err != nil {
		return Script{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// ParseTOML reads a script. A name that no script has is an error.
func ParseTOML(text []byte) (Script, error) {
	var tree map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		return Script{}, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return Script{}, err
	}
	return ParseJSON(text)
}

// ParseJSON reads a script. A name that no script has is an error.
func ParseJSON(text []byte) (s Script, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, err
	}
	return s, s.Validate()
}

// Validate checks a script.
func (s *Script) Validate() error {
	if len(s.Rules) == 0 {
		return fmt.Errorf("a script has at least one [[rule]]")
	}
	if len(s.Rules) > maxRules {
		return fmt.Errorf("the script has %d rules, and may have %d", len(s.Rules), maxRules)
	}
	for i := range s.Rules {
		if err := s.Rules[i].validate(); err != nil {
			return fmt.Errorf("rule %d%s: %w", i+1, named(s.Rules[i].Name), err)
		}
	}
	return nil
}

func named(name string) string {
	if name == "" {
		return ""
	}
	return " (" + name + ")"
}

func (r *Rule) validate() error {
	a := &r.Answer
	for _, n := range []struct {
		name      string
		got, most int
	}{
		{"times", r.Times, maxRepeat}, {"turn", r.Match.Turn, maxRepeat}, {"step", r.Match.Step, maxRepeat},
		{"repeat", a.Repeat, maxRepeat}, {"pieces", a.Pieces, maxPieces}, {"fault_after", a.FaultAfter, maxRepeat},
		{"first_token, in seconds", int(time.Duration(a.FirstToken) / time.Second), int(maxDelay / time.Second)},
		{"between, in seconds", int(time.Duration(a.Between) / time.Second), int(maxDelay / time.Second)},
	} {
		if n.got < 0 || n.got > n.most {
			return fmt.Errorf("%s is %d, and may be 0 to %d", n.name, n.got, n.most)
		}
	}
	if !slices.Contains(faults, a.Fault) {
		return fmt.Errorf("there is no fault %q: %s", a.Fault, strings.Join(faults[1:], ", "))
	}
	for _, q := range a.Quirks {
		if !slices.Contains(quirks, q) {
			return fmt.Errorf("there is no quirk %q: %s", q, strings.Join(quirks, ", "))
		}
	}
	if a.Status != 0 && (a.Status < 200 || a.Status > 599) {
		return fmt.Errorf("status is %d, and may be 200 to 599", a.Status)
	}
	for i, c := range a.ToolCalls {
		switch c.Arguments.(type) {
		case nil, string, map[string]any:
		default:
			return fmt.Errorf("the arguments of call %d are neither a table nor a text", i+1)
		}
	}
	var err error
	r.regexp, err = regexp.Compile(r.Match.Regexp)
	return err
}
