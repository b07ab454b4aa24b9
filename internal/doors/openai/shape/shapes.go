package shape

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// Name is that of the door.
const Name = "openai"

// A Response is a run, or a part of it, as OpenAI shows it.
type Response struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	CreatedAt   int64             `json:"created_at"`
	Status      string            `json:"status"`
	Background  bool              `json:"background"`
	Error       *Failure          `json:"error"`
	Incomplete  *Incomplete       `json:"incomplete_details"`
	Instruct    json.RawMessage   `json:"instructions"`
	Metadata    map[string]string `json:"metadata"`
	Model       string            `json:"model"`
	Output      []*Item           `json:"output"`
	Previous    *string           `json:"previous_response_id"`
	Talk        *Conversation     `json:"conversation"`
	Parallel    bool              `json:"parallel_tool_calls"`
	Temperature *float64          `json:"temperature"`
	ToolChoice  string            `json:"tool_choice"`
	Tools       []string          `json:"tools"`
	TopP        *float64          `json:"top_p"`
	Usage       *Usage            `json:"usage"`
	Store       bool              `json:"store"`
}

// A Conversation is a thread.
type Conversation struct {
	ID string `json:"id"`
}

// A Failure is why a run has failed.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Incomplete is why a response is not whole.
type Incomplete struct {
	Reason string `json:"reason"`
}

// A Usage are the tokens of a run, as its result has them.
type Usage struct {
	Input        int          `json:"input_tokens"`
	InputDetail  inputTokens  `json:"input_tokens_details"`
	Output       int          `json:"output_tokens"`
	OutputDetail outputTokens `json:"output_tokens_details"`
	Total        int          `json:"total_tokens"`
}

type inputTokens struct {
	Cached int `json:"cached_tokens"`
}

type outputTokens struct {
	Reasoning int `json:"reasoning_tokens"`
}

// An Item is a part of the output: a message, reasoning, a call of a tool, or a request for an approval. Absent
// members are left out.
type Item struct {
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	Status  string   `json:"status,omitempty"`
	Role    string   `json:"role,omitempty"`
	Content *[]*Part `json:"content,omitempty"`
	Summary []string `json:"summary,omitzero"` // of reasoning: it has none

	Name      string  `json:"name,omitempty"`
	Arguments *string `json:"arguments,omitempty"`
	Server    string  `json:"server_label,omitempty"`
	Output    *string `json:"output,omitempty"`
	Error     *string `json:"error,omitempty"`
}

// A Part is a text of an item.
type Part struct {
	Type        string   `json:"type"`
	Text        string   `json:"text"`
	Annotations []string `json:"annotations,omitzero"`
}

// An Event is one server-sent event of a response.
type Event struct {
	Type     string    `json:"type"`
	Sequence int64     `json:"sequence_number"`
	Response *Response `json:"response,omitempty"`
	Index    *int      `json:"output_index,omitempty"`
	Item     *Item     `json:"item,omitempty"`
	ItemID   string    `json:"item_id,omitempty"`
	Content  *int      `json:"content_index,omitempty"`
	Part     *Part     `json:"part,omitempty"`
	Delta    *string   `json:"delta,omitempty"`
	Text     *string   `json:"text,omitempty"`
	Logprobs *[]string `json:"logprobs,omitempty"`
}

// A Ref names a response: a run, and the line of its log after which the response begins. The number
// is zero for the first part.
type Ref struct {
	Run   perdure.RunID
	After int64
}

const (
	responsePrefix     = "resp_"
	ConversationPrefix = "conv_"
	approvalPrefix     = "mcpr_"
	ownApprovalPrefix  = "apv_"
)

// String is the id of the response.
func (r Ref) String() string {
	id := responsePrefix + Bare(string(r.Run))
	if r.After > 0 {
		id += "p" + strconv.FormatInt(r.After, 10)
	}
	return id
}

// Bare is a UUID without its hyphens.
func Bare(id string) string { return strings.ReplaceAll(id, "-", "") }

// ParseRef reads the id of a response. Any other text is an id that there is not.
func ParseRef(id string) (Ref, error) {
	missing := perdure.Errorf(perdure.CodeNotFound, "there is no such response")
	rest, ok := strings.CutPrefix(id, responsePrefix)
	digits, line, isPart := strings.Cut(rest, "p")
	run, valid := Dashed(digits)
	r := Ref{Run: perdure.RunID(run)}
	if !ok || !valid {
		return Ref{}, missing
	}
	if isPart {
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil || n <= 0 || n > MaxLine || strconv.FormatInt(n, 10) != line {
			return Ref{}, missing
		}
		r.After = n
	}
	return r, nil
}

// Dashed is a UUID of 32 hexadecimal digits.
func Dashed(digits string) (id string, ok bool) {
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != 16 || digits != strings.ToLower(digits) {
		return "", false
	}
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-"), true
}

// A line of the log becomes several events. The sequence number of an event is the number of its line
// times FramesPerLine, and its place among the events of the line.
const (
	FramesPerLine = 1000
	MaxLine       = 1 << 42
)

// Server is the label of the server of all tools and approvals.
const Server = "perdure"

// RequestID is the id of the item that asks for an approval, and ApprovalID the way back.
func RequestID(id perdure.ApprovalID) string {
	return approvalPrefix + strings.TrimPrefix(string(id), ownApprovalPrefix)
}

// ApprovalID is the approval that an item asks for.
func ApprovalID(item string) perdure.ApprovalID {
	return perdure.ApprovalID(ownApprovalPrefix + strings.TrimPrefix(item, approvalPrefix))
}
