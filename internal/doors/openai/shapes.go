package openai

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// A response is a run, or a part of it, as OpenAI shows it.
type response struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	CreatedAt   int64             `json:"created_at"`
	Status      string            `json:"status"`
	Background  bool              `json:"background"`
	Error       *failure          `json:"error"`
	Incomplete  *incomplete       `json:"incomplete_details"`
	Instruct    json.RawMessage   `json:"instructions"`
	Metadata    map[string]string `json:"metadata"`
	Model       string            `json:"model"`
	Output      []*item           `json:"output"`
	Previous    *string           `json:"previous_response_id"`
	Talk        *conversation     `json:"conversation"`
	Parallel    bool              `json:"parallel_tool_calls"`
	Temperature *float64          `json:"temperature"`
	ToolChoice  string            `json:"tool_choice"`
	Tools       []string          `json:"tools"`
	TopP        *float64          `json:"top_p"`
	Usage       *usage            `json:"usage"`
	Store       bool              `json:"store"`
}

type conversation struct {
	ID string `json:"id"`
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

// A usage are the tokens of a run, as its result has them.
type usage struct {
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

// An item is a part of the output: a message, reasoning, a call of a tool, or a request for an approval. Absent
// members are left out.
type item struct {
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	Status  string   `json:"status,omitempty"`
	Role    string   `json:"role,omitempty"`
	Content *[]*part `json:"content,omitempty"`
	Summary []string `json:"summary,omitzero"` // of reasoning: it has none

	Name      string  `json:"name,omitempty"`
	Arguments *string `json:"arguments,omitempty"`
	Server    string  `json:"server_label,omitempty"`
	Output    *string `json:"output,omitempty"`
	Error     *string `json:"error,omitempty"`
}

type part struct {
	Type        string   `json:"type"`
	Text        string   `json:"text"`
	Annotations []string `json:"annotations,omitzero"`
}

// An event is one server-sent event of a response.
type event struct {
	Type     string    `json:"type"`
	Sequence int64     `json:"sequence_number"`
	Response *response `json:"response,omitempty"`
	Index    *int      `json:"output_index,omitempty"`
	Item     *item     `json:"item,omitempty"`
	ItemID   string    `json:"item_id,omitempty"`
	Content  *int      `json:"content_index,omitempty"`
	Part     *part     `json:"part,omitempty"`
	Delta    *string   `json:"delta,omitempty"`
	Text     *string   `json:"text,omitempty"`
	Logprobs *[]string `json:"logprobs,omitempty"`
}

// A ref names a response: a run, and the line of its log after which the response begins. The number
// is zero for the first part.
type ref struct {
	run   perdure.RunID
	after int64
}

const (
	responsePrefix     = "resp_"
	conversationPrefix = "conv_"
	approvalPrefix     = "mcpr_"
	ownApprovalPrefix  = "apv_"
)

func (r ref) String() string {
	id := responsePrefix + bare(string(r.run))
	if r.after > 0 {
		id += "p" + strconv.FormatInt(r.after, 10)
	}
	return id
}

// bare is a UUID without its hyphens.
func bare(id string) string { return strings.ReplaceAll(id, "-", "") }

// parseRef reads the id of a response. Any other text is an id that there is not.
func parseRef(id string) (ref, error) {
	missing := perdure.Errorf(perdure.CodeNotFound, "there is no such response")
	rest, ok := strings.CutPrefix(id, responsePrefix)
	digits, line, isPart := strings.Cut(rest, "p")
	run, valid := dashed(digits)
	r := ref{run: perdure.RunID(run)}
	if !ok || !valid {
		return ref{}, missing
	}
	if isPart {
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil || n <= 0 || n > maxLine || strconv.FormatInt(n, 10) != line {
			return ref{}, missing
		}
		r.after = n
	}
	return r, nil
}

// dashed is a UUID of 32 hexadecimal digits.
func dashed(digits string) (id string, ok bool) {
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != 16 || digits != strings.ToLower(digits) {
		return "", false
	}
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-"), true
}

// A line of the log becomes several events. The sequence number of an event is the number of its line
// times framesPerLine, and its place among the events of the line.
const (
	framesPerLine = 1000
	maxLine       = 1 << 42
)
