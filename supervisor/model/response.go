package model

// A Response is a model's answer.
type Response struct {
	// Message has the role assistant, the text, the tool calls and the reasoning.
	Message Message `json:"message"`
	// Finish is the endpoint's reason: "stop", "length" for an answer that was cut at a limit,
	// "tool_calls", "content_filter", or one of its own.
	Finish string `json:"finish"`
	// Endpoint is the number of the endpoint that answered, in the order of Options.Models. Zero is
	// the first; others are fallbacks.
	Endpoint int `json:"endpoint,omitempty"`
	// Model is the name that the endpoint gives its model, or the one that was asked for.
	Model string `json:"model"`
	// Attempts is how many requests were sent.
	Attempts int   `json:"attempts"`
	Usage    Usage `json:"usage"`
	// Lost estimates the usage of attempts that failed after the model had begun to answer.
	Lost Usage `json:"lost,omitzero"`
}

// Usage counts tokens, and what they cost.
type Usage struct {
	Input       int `json:"input"`
	CachedInput int `json:"cached_input,omitempty"` // part of Input
	Output      int `json:"output"`
	Reasoning   int `json:"reasoning,omitempty"` // part of Output
	// Estimated is set if the endpoint has not counted.
	Estimated bool `json:"estimated,omitempty"`
	// Cost is in the currency of Options.Prices. Without a price it is what the endpoint said, if it
	// said so.
	Cost float64 `json:"cost,omitempty"`
}

// Total returns the tokens of input and output.
func (u Usage) Total() int { return u.Input + u.Output }

// Add returns the sum of two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{u.Input + v.Input, u.CachedInput + v.CachedInput, u.Output + v.Output, u.Reasoning + v.Reasoning,
		u.Estimated || v.Estimated, u.Cost + v.Cost}
}

// A Price is what a million tokens cost.
type Price struct {
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
	// CachedInput is the price of input that the endpoint had in its cache. Zero means that of Input.
	CachedInput float64 `json:"cached_input"`
}

// Of returns the cost of a usage.
func (p Price) Of(u Usage) float64 {
	cached := p.CachedInput
	if cached == 0 {
		cached = p.Input
	}
	return (float64(u.Input-u.CachedInput)*p.Input + float64(u.CachedInput)*cached + float64(u.Output)*p.Output) / 1e6
}

// maxCount limits a number of tokens that an endpoint says. More is taken for this many.
const maxCount = 1e9

// wireUsage is the usage as endpoints send it. Numbers are floats, as some write 12.0.
type wireUsage struct {
	Prompt     float64 `json:"prompt_tokens"`
	Completion float64 `json:"completion_tokens"`
	PromptMore struct {
		Cached float64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionMore struct {
		Reasoning float64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	Cost float64 `json:"cost"`
}

func (w *wireUsage) usage() Usage {
	count := func(n, most float64) int { return int(min(max(n, 0), most)) }
	u := Usage{Input: count(w.Prompt, maxCount), Output: count(w.Completion, maxCount), Cost: min(max(w.Cost, 0), 1e6)}
	u.CachedInput = count(w.PromptMore.Cached, float64(u.Input))
	u.Reasoning = count(w.CompletionMore.Reasoning, float64(u.Output))
	return u
}
